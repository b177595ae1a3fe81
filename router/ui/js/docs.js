// The page of the API: reads /openapi.json and lists what it says. Schemas open where they are named, one level at a
// time, so that types that hold themselves need no special care.

import { byId, h } from './dom.js';

let schemas = {};

const nameOf = (schema) => schema.$ref?.split('/').at(-1);
const variantsOf = (schema) => schema.anyOf ?? schema.oneOf;

function typeOf(schema) {
  if (schema.$ref) return nameOf(schema);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(' | ');
  if (variantsOf(schema)) return variantsOf(schema).map(typeOf).join(' | ');
  if (schema.type === 'array') return `list of ${typeOf(schema.items ?? {})}`;
  return [schema.type ?? 'anything'].flat().join(' | ');
}

// The named types that a schema mentions.
function namesIn(schema) {
  if (schema.$ref) return [nameOf(schema)];
  const inner = [...(variantsOf(schema) ?? []), ...(schema.items ? [schema.items] : [])];
  return [...new Set(inner.flatMap(namesIn))];
}

// Filled when it is first opened.
function unfolding(summary, fill, props = {}) {
  const details = h('details', props, h('summary', {}, summary));
  details.addEventListener('toggle', () => details.childElementCount === 1 && details.append(...fill()));
  return details;
}

const named = (name) => unfolding(name, () => [schemaView(schemas[name] ?? {})]);

function row(name, schema, isRequired) {
  return h('tr', {},
    h('td', {}, name, isRequired && h('span', { class: 'note' }, 'required')),
    h('td', {}, h('code', {}, typeOf(schema)), schema.description && h('span', { class: 'note' }, schema.description),
      namesIn(schema).map(named)));
}

function fieldsOf(schema) {
  const fields = Object.entries(schema.properties ?? {});
  return fields.length > 0 && h('table', {}, h('tbody', {},
    fields.map(([name, field]) => row(name, field, schema.required?.includes(name)))));
}

function schemaView(schema) {
  const parts = [...(schema.allOf ?? []), ...(variantsOf(schema) ?? []), ...(schema.items ? [schema.items] : [])];
  const inner = parts.map((part) => (part.$ref ? named(nameOf(part)) : schemaView(part)));
  const isPlain = !schema.properties && inner.length === 0;
  return h('div', { class: 'schema' },
    schema.description && h('span', { class: 'note' }, schema.description),
    isPlain && h('code', {}, typeOf(schema)), fieldsOf(schema), inner);
}

function contentView(content) {
  return Object.entries(content ?? {}).flatMap(([mediaType, { schema }]) => [
    h('code', {}, mediaType), mediaType.endsWith('json') && (schema.$ref ? named(nameOf(schema)) : schemaView(schema)),
  ]);
}

function curl(method, path, operation) {
  const key = operation.security ? " -H 'Authorization: Bearer KEY'" : '';
  const body = operation.requestBody ? " -H 'Content-Type: application/json' -d '{..}'" : '';
  return `curl ${method === 'GET' ? '' : `-X ${method} `}${location.origin}${path}${key}${body}`;
}

function operationView(path, method, operation) {
  const answers = Object.entries(operation.responses);
  const body = () => [h('div', { class: 'body' },
    h('pre', { class: 'example' }, curl(method, path, operation)),
    operation.requestBody && [h('h2', {}, 'Body'), h('div', { class: 'schema' }, contentView(operation.requestBody.content))],
    answers.flatMap(([status, answer]) => [
      h('h2', {}, `${status === 'default' ? 'Errors' : status}: ${answer.description}`),
      h('div', { class: 'schema' }, contentView(answer.content)),
    ]))];
  const summary = [h('span', { class: 'method' }, method), h('span', { class: 'path' }, path),
    h('span', { class: 'about' }, operation.summary)];
  const view = unfolding('', body, { class: 'operation', id: operation.operationId });
  view.firstChild.append(...summary);
  return view;
}

async function show() {
  const response = await fetch('openapi.json');
  if (!response.ok) throw new Error(`openapi.json: ${response.status}`);
  const { info, paths, components } = await response.json();
  schemas = components.schemas;
  byId('about').textContent = `${info.description} Version ${info.version}.`;
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => operationView(path, method.toUpperCase(), operation)));
  byId('operations').replaceChildren(...operations);
}

show().catch((error) => byId('operations').replaceChildren(h('p', { class: 'field-problem', role: 'alert' }, error.message)));
