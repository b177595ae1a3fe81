// Making elements. Text always goes in as text nodes: nothing in this page ever parses a string as HTML.

const SVG = 'http://www.w3.org/2000/svg';

// h('button', { class: 'x', onclick: f, 'aria-label': 'y' }, child, 'text', …); null and false children are left out.
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) setProp(element, name, value);
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

function setProp(element, name, value) {
  if (value == null || value === false) return;
  if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
  else if (name === 'value' || name === 'open' || name === 'checked') element[name] = value;
  else element.setAttribute(name, value === true ? '' : value);
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// An icon of the sprite in index.html; decoration only, the button around it carries the label.
export const icon = (name) =>
  svg('svg', { class: 'icon', 'aria-hidden': 'true' }, svg('use', { href: `#icon-${name}` }));

export function setIcon(button, name) {
  button.querySelector('use').setAttribute('href', `#icon-${name}`);
}

export const iconButton = (name, label, onclick, more = '') =>
  h('button', { type: 'button', class: `icon-button ${more}`, 'aria-label': label, title: label, onclick }, icon(name));

export const byId = (id) => document.getElementById(id);

// Calls `run` at most once per frame, with the latest state when the frame comes. A hidden page has no frames, so
// a timer stands in there.
export function oncePerFrame(run) {
  let scheduled = false;
  const fire = () => {
    scheduled = false;
    run();
  };
  return () => {
    if (scheduled) return;
    scheduled = true;
    if (document.hidden) setTimeout(fire, 200);
    else requestAnimationFrame(fire);
  };
}
