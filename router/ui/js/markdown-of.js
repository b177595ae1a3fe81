// A conversation as a Markdown text, to paste it or to keep it. Pure.

import { fenced, withFiles } from './files.js';

const NAMES = { user: 'You', assistant: 'Model', tool: 'Tool result' };

export function markdownOf({ title, system, messages }) {
  const parts = [`# ${oneLine(title) || 'Conversation'}`];
  if (system?.trim()) parts.push('## System prompt', system.trim());
  for (const message of messages) parts.push(`## ${headingOf(message)}`, ...bodyOf(message));
  return `${parts.join('\n\n')}\n`;
}

const headingOf = ({ role, name }) => (role === 'tool' && name ? `${NAMES.tool} of ${oneLine(name)}` : NAMES[role]);

function bodyOf(message) {
  if (message.role === 'tool') return [fenced(message.content)];
  if (message.role === 'user') return [withFiles(message.content, message.files)];
  const { content, reasoning, toolCalls = [], error } = message;
  return [
    reasoning && quoted(reasoning),
    content,
    ...toolCalls.map((call) => `Calls \`${oneLine(call.name)}\`:\n\n${fenced(call.arguments, 'json')}`),
    error && `*${oneLine(error.message)}*`,
  ].filter(Boolean);
}

const quoted = (text) => text.trim().split('\n').map((line) => `> ${line}`.trimEnd()).join('\n');
const oneLine = (text) => String(text ?? '').replace(/\s+/g, ' ').trim();
