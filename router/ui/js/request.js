// From what the panel holds to the body of a request. Pure. Empty fields are left out, so the server's defaults hold.

import { withFiles } from './files.js';

const NUMBERS = {
  temperature: 'temperature', topP: 'top_p', topK: 'top_k', maxTokens: 'max_tokens', seed: 'seed',
  frequencyPenalty: 'frequency_penalty', presencePenalty: 'presence_penalty', repetitionPenalty: 'repetition_penalty',
};

export function samplingOf(settings) {
  const body = {};
  for (const [name, field] of Object.entries(NUMBERS)) {
    if (settings[name] !== '' && settings[name] != null) body[field] = Number(settings[name]);
  }
  const stop = (settings.stop ?? '').split('\n').filter(Boolean).map(unescapeStop);
  if (stop.length) body.stop = stop;
  return body;
}

// A stop string is one line of the field; \n and \t in it mean the characters.
const unescapeStop = (line) => line.replace(/\\([nt\\])/g, (_, c) => ({ n: '\n', t: '\t', '\\': '\\' })[c]);

export function chatBody(model, conversation, settings) {
  return {
    model,
    messages: messagesOf(conversation),
    stream: true,
    // With every chunk, so that the rate of tokens can be shown as they come.
    stream_options: { include_usage: true, continuous_usage_stats: true },
    ...samplingOf(settings),
    ...formatOf(settings),
    ...toolsOf(settings),
  };
}

export function completionBody(model, prompt, settings) {
  return {
    model, prompt, stream: true, stream_options: { include_usage: true }, ...samplingOf(settings),
    logprobs: Number(settings.logprobs ?? 5),
  };
}

function messagesOf({ system, messages }) {
  const start = system?.trim() ? [{ role: 'system', content: system }] : [];
  return [...start, ...messages.map(messageOf).filter(Boolean)];
}

function messageOf({ role, content, files, toolCalls, toolCallId }) {
  if (role === 'user') return { role, content: withFiles(content, files) };
  if (role === 'tool') return { role, content, tool_call_id: toolCallId };
  if (role !== 'assistant' || !toolCalls?.length) return content ? { role, content } : null;
  const calls = toolCalls.map(({ id, name, arguments: json }) => ({ id, type: 'function', function: { name, arguments: json } }));
  return { role, content: content || null, tool_calls: calls };
}

function formatOf({ format, schema, regex }) {
  if (format === 'json') return { response_format: { type: 'json_object' } };
  if (format === 'schema') {
    const json_schema = { name: 'answer', schema: parse('JSON schema', schema), strict: true };
    return { response_format: { type: 'json_schema', json_schema } };
  }
  if (format === 'regex') return { response_format: { type: 'regex', value: regex ?? '' } };
  return {};
}

function toolsOf({ tools, toolChoice }) {
  if (!tools?.trim()) return {};
  const list = parse('list of tools', tools);
  return { tools: Array.isArray(list) ? list : [list], tool_choice: toolChoice || 'auto' };
}

// Errors here are shown to the user beside the field and instead of sending.
export function parse(what, text) {
  try {
    return JSON.parse(text ?? '');
  } catch (error) {
    throw new SettingError(`The ${what} is not valid JSON: ${error.message}`);
  }
}

export class SettingError extends Error {
  kind = 'setting';
}
