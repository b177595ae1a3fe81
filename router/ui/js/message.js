// How one message looks: the user's with an edit form, the model's with folded reasoning, tool calls, what went
// wrong, and under it the actions and the measurements. Reads a message as chat.js holds it, changes nothing in it.

import { copyButton } from './copy.js';
import { codeBlock } from './code.js';
import { h, icon, iconButton } from './dom.js';
import { problemCard } from './problem.js';
import { MarkdownView } from './markdown/view.js';
import { progressLine, statsLine } from './stats-line.js';
import { toolCallCard } from './tool-call.js';

const NAMES = { user: 'You', assistant: 'Model', tool: 'Tool result' };

export class MessageView {
  #actions;
  #parts;

  constructor(message, actions) {
    this.message = message;
    this.#actions = actions;
    this.root = h('article', { class: `message ${message.role}`, 'aria-label': NAMES[message.role] });
    this.#build();
  }

  #build() {
    if (this.message.role === 'assistant') this.#buildAnswer();
    else if (this.message.role === 'tool') this.#buildToolResult();
    else this.#buildQuestion();
  }

  #buildQuestion() {
    const { content, files = [] } = this.message;
    const actions = h('div', { class: 'actions' },
      copyButton('Copy message', () => content), iconButton('edit', 'Edit message', () => this.edit()));
    const bubble = content ? [h('div', { class: 'bubble' }, content)] : [];
    this.root.replaceChildren(...bubble, ...files.map(attachedFile), actions);
  }

  edit() {
    const field = h('textarea', { class: 'field', 'aria-label': 'Edit message', rows: 3, value: this.message.content });
    const cancel = () => this.#buildQuestion();
    const submit = () => (field.value.trim() || this.message.files) && this.#actions.edit(field.value.trim());
    const form = h('form', { class: 'edit', onsubmit: (event) => { event.preventDefault(); submit(); } }, field,
      h('div', { class: 'edit-buttons' },
        h('button', { type: 'button', class: 'button', onclick: cancel }, 'Cancel'),
        h('button', { type: 'submit', class: 'button primary' }, 'Send again')));
    field.addEventListener('keydown', (event) => onEditKey(event, submit, cancel));
    this.root.replaceChildren(form);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  #buildToolResult() {
    const head = h('p', { class: 'tool-head' }, icon('tool'), `Result${this.message.name ? ` of ${this.message.name}` : ''}`);
    this.root.replaceChildren(head, codeBlock(this.message.content, 'result'));
  }

  #buildAnswer() {
    const [reasoning, content] = [h('div', { class: 'markdown' }), h('div', { class: 'markdown' })];
    const summary = h('summary');
    this.#parts = {
      reasoning: new MarkdownView(reasoning), content: new MarkdownView(content), summary, contentRoot: content,
      fold: h('details', { class: 'reasoning', hidden: true }, summary, reasoning),
      waiting: h('p', { class: 'waiting', 'aria-hidden': 'true' }, h('span'), h('span'), h('span')),
      tools: h('div', { class: 'tool-calls' }), problem: h('div'), foot: h('footer', { class: 'foot' }),
    };
    const { fold, waiting, tools, problem, foot } = this.#parts;
    this.root.replaceChildren(fold, content, waiting, tools, problem, foot);
    this.update();
  }

  // Shows what the message holds now. Called for every frame of a stream.
  update() {
    const { content = '', reasoning = '', streaming = false, error } = this.message;
    const parts = this.#parts;
    this.root.setAttribute('aria-busy', String(streaming));
    parts.content.update(content, streaming);
    parts.contentRoot.classList.toggle('streaming', streaming && content !== '');
    this.#updateReasoning(reasoning);
    parts.waiting.hidden = !streaming || content !== '' || reasoning !== '' || Boolean(this.message.toolCalls);
    this.#updateTools(streaming);
    parts.problem.replaceChildren(...(error ? [problemCard(error, this.#actions.regenerate)] : []));
    parts.foot.replaceChildren(...this.#foot(streaming));
  }

  #updateReasoning(reasoning) {
    const { fold, summary } = this.#parts;
    const { thinking, stats } = this.message;
    fold.hidden = reasoning === '' && !thinking;
    this.#parts.reasoning.update(reasoning, Boolean(thinking));
    const seconds = stats?.thinkingMs >= 100 ? ` for ${(stats.thinkingMs / 1000).toFixed(1)} s` : '';
    const text = thinking ? 'Thinking…' : `Thought${seconds}`;
    if (summary.textContent !== text) summary.replaceChildren(text);
    fold.classList.toggle('thinking', Boolean(thinking));
  }

  // Cards hold a field for the result, so they are rebuilt only while they still stream.
  #updateTools(streaming) {
    const calls = this.message.toolCalls ?? [];
    const { tools } = this.#parts;
    if (!streaming && tools.dataset.done) return;
    const giveResult = (call) => !streaming && this.#actions.needsResult(call) && this.#actions.toolResult;
    tools.replaceChildren(...calls.map((call) => toolCallCard(call, giveResult(call))));
    if (!streaming) tools.dataset.done = 'true';
  }

  #foot(streaming) {
    if (streaming) return [progressLine(this.message.stats)];
    const { content, error } = this.message;
    return [
      h('div', { class: 'actions' },
        content && copyButton('Copy answer', () => content),
        !error && iconButton('redo', 'Regenerate answer', this.#actions.regenerate)),
      statsLine(this.message),
    ];
  }
}

const attachedFile = ({ name, text }) => h('details', { class: 'attached' }, h('summary', {}, name), codeBlock(text, name));

function onEditKey(event, submit, cancel) {
  if (event.isComposing) return;
  if (event.key === 'Enter' && !event.shiftKey) {
    event.preventDefault();
    submit();
  } else if (event.key === 'Escape') {
    event.stopPropagation();
    cancel();
  }
}
