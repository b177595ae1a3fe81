// The tree of inline.js as elements. Text stays text: there is no HTML to sanitise. Links go to http, https and mailto
// only, and images become links, because showing them would call a foreign server.

import { h } from '../dom.js';

export const elementsOf = (nodes, isInLink = false) => nodes.map((node) => ELEMENTS[node.type](node, isInLink));

const ELEMENTS = {
  text: ({ text }) => text,
  html: ({ text }) => text,
  code: ({ text }) => h('code', {}, text),
  break: () => h('br'),
  strong: ({ children }, isInLink) => h('strong', {}, elementsOf(children, isInLink)),
  em: ({ children }, isInLink) => h('em', {}, elementsOf(children, isInLink)),
  del: ({ children }, isInLink) => h('del', {}, elementsOf(children, isInLink)),
  link: (node) => link(node, elementsOf(node.children, true)),
  image: (node, isInLink) => image(node, isInLink),
};

function image(node, isInLink) {
  const label = `Image: ${textOf(node.children) || node.href}`;
  return isInLink ? label : link(node, [label]);
}

const textOf = (nodes) => nodes.map(({ text, children }) => text ?? textOf(children ?? [])).join('');

// The address of a link that is still being written is not known yet.
function link({ href, source }, children) {
  if (href === null) return h('a', {}, children);
  const address = safeAddress(href);
  if (!address) return source;
  return h('a', { href: address, target: '_blank', rel: 'noopener noreferrer nofollow', title: address }, children);
}

// Absolute http, https and mailto addresses only; anything else stays text.
function safeAddress(text) {
  if (!/^(https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}
