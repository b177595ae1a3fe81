// A call that the model made of a tool. Nothing is run here: the user may type the result and send it on.

import { codeBlock } from './code.js';
import { h, icon } from './dom.js';

export function toolCallCard(call, giveResult) {
  return h('section', { class: 'tool-call', 'aria-label': `Call of ${call.name}` },
    h('p', { class: 'tool-head' }, icon('tool'), h('b', {}, call.name || '…')),
    codeBlock(pretty(call.arguments), 'json'),
    giveResult && resultForm(call, giveResult));
}

function resultForm(call, giveResult) {
  const field = h('textarea', { class: 'field', rows: 1, placeholder: 'Result of this call…', 'aria-label': `Result of ${call.name}` });
  const form = h('form', { class: 'tool-result' }, field, h('button', { type: 'submit', class: 'button' }, 'Send result'));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    form.remove();
    giveResult(call, field.value);
  });
  return form;
}

// Arguments that are complete JSON are indented; while they stream they are shown as they come.
function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
