// Markdown's blocks: text in, a tree out, line by line and in linear time. What is inside of a line is left to inline.js.
// The blocks of the tree:
//
//   paragraph {text, task?}   heading {level, text}   code {language, text}   rule
//   quote {children}   list {isOrdered, start, isLoose, children: items}   item {marker, children}
//   table {alignments, rows: [[text]]}   html {text}
//
// A text that is still being written is read as what it is about to be: `isOpen` marks the block that grows, and what
// could still become anything is held back.

import { unescape } from './characters.js';
import { htmlBlockOf } from './html.js';
import { Line, strip } from './line.js';
import { takeDefinitions } from './links.js';
import { alignmentsOf, cellsOf } from './tables.js';

// Open blocks at a time; what is nested deeper is text. A list and its item are two.
const MAX_OPEN = 50;
// Columns from which a line is code.
const CODE_INDENT = 4;

const RULE = /^(?:(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|(?:-[ \t]*){3,})$/;
const UNDERLINE = /^(?:(=+)|-+)[ \t]*$/;
const HEADING = /^#{1,6}(?=[ \t]|$)/;
const FENCE = /^(?:`{3,}(?=[^`]*$)|~{3,})/;
const MARKER = /^(?:[*+-]|(\d{1,9})[.)])(?=[ \t]|$)/;
const TASK = /^\[([ xX])\][ \t\n]+(?=[^ \t\n])/;

// Last lines without content yet: `-` may become an item, a rule or the underline of a heading.
const MAX_HELD = 100;
const HELD_LINE = /^(?:[-\s=*_+#>`~|:]*|[-\s*+>]*\d{1,9}(?:[.)]\s*)?)$/;
const HELD_CODE_LINE = /^[\s>]*(?:`+|~+)$/;
// Paragraphs that may become a task or a definition.
const HELD_PARAGRAPH = /^\[[^\]]{0,30}(?:\]|\]:.*)?$/;

// Reads `text` from the position `from`, where a block of the document starts. `resume` is the last block that more text
// can change: its index and position.
export function parseBlocks(text, definitions, { from = 0, isOpen = false } = {}) {
  return new BlockParser(definitions).parse(text, from, isOpen);
}

// Whether a line goes on with an open block; reads the block's part of it.
const GOES_ON = {
  document: () => true,
  quote: takeQuoteMark,
  list: () => true,
  item: takeItemIndent,
  paragraph: (line) => !line.isBlank,
  table: (line) => !line.isBlank,
  html: (line, { ends }) => Boolean(ends) || !line.isBlank,
  code: (line, code) => Boolean(code.fence) || line.isBlank || line.indent >= CODE_INDENT,
};

function takeQuoteMark(line) {
  if (line.indent >= CODE_INDENT || line.content[0] !== '>') return false;
  line.skip(1);
  line.skipColumns(Math.min(line.indent, 1));
  return true;
}

function takeItemIndent(line, item) {
  const goesOn = line.isBlank ? item.children.length > 0 : line.indent >= item.width;
  if (goesOn) line.skipColumns(Math.min(line.indent, item.width));
  return goesOn;
}

class BlockParser {
  // From the document down to the block that the newest line is in.
  #stack = [{ type: 'document', children: [] }];
  // How many of them the current line goes on with.
  #matched = 1;
  #definitions;
  #number = 0;
  #position = 0;

  constructor(definitions) {
    this.#definitions = definitions;
  }

  parse(text, from, isOpen) {
    const { children } = this.#stack[0];
    let resume;
    for (const { content, position, isWhole } of linesOf(text, from)) {
      if (!isWhole) {
        resume = resumeAt(children, from);
        if (content === '' || (isOpen && this.#isHeld(content))) break;
      }
      this.#add(new Line(content), position);
      if (!isWhole && isOpen) this.#tip.isOpen = true;
    }
    if (isOpen) this.#leaveOpen();
    this.#close(1);
    return { blocks: children, resume };
  }

  get #tip() {
    return this.#stack.at(-1);
  }

  get #current() {
    return this.#stack[this.#matched - 1];
  }

  #isHeld(content) {
    const pattern = this.#tip.fence ? HELD_CODE_LINE : HELD_LINE;
    return content.length <= MAX_HELD && pattern.test(content);
  }

  // A paragraph may go on in the next line. What looks like the head of a table is shown as one.
  #leaveOpen() {
    for (const block of this.#stack) if (block.type === 'list') block.isOpen = true;
    const tip = this.#tip;
    if (tip.type !== 'paragraph') return;
    const isHead = tip.lines.at(-1)?.startsWith('|') && !tip.lines.at(-2)?.startsWith('|');
    const isGrowing = tip.isOpen;
    tip.isOpen = true;
    this.#matched = this.#stack.length;
    if (isHead) this.#openTable(tip, []).isOpen = isGrowing;
  }

  #add(line, position) {
    this.#number += 1;
    this.#position = position;
    this.#match(line);
    if (this.#current.type === 'code') this.#addCode(this.#current, line);
    else if (this.#current.type === 'html') this.#addHtml(this.#current, line);
    else if (!this.#start(line)) this.#addText(line);
  }

  #match(line) {
    this.#matched = 1;
    for (const block of this.#stack.slice(1)) {
      if (!GOES_ON[block.type]?.(line, block)) return;
      block.end = this.#number;
      this.#matched += 1;
    }
  }

  #addCode(code, line) {
    if (code.fence && isClosed(code.fence, line)) return this.#close(this.#stack.length - 1);
    line.skipColumns(Math.min(line.indent, code.fence ? code.fence.indent : CODE_INDENT));
    code.lines.push(line.rest);
  }

  #addHtml(html, line) {
    html.lines.push(line.rest);
    if (html.ends?.test(line.rest)) this.#close(this.#stack.length - 1);
  }

  // Opens what starts in this line. Returns whether nothing of it is left.
  #start(line) {
    while (!line.isBlank) {
      if (this.#startLeaf(line)) return true;
      if (!this.#startContainer(line)) return false;
    }
    return false;
  }

  #startLeaf(line) {
    if (line.indent >= CODE_INDENT) return this.#startIndentedCode(line);
    return this.#startHeading(line) || this.#startFence(line) || this.#startHtml(line) || this.#underline(line)
      || this.#startTable(line) || this.#startRule(line);
  }

  #startContainer(line) {
    if (line.indent >= CODE_INDENT || this.#matched >= MAX_OPEN) return false;
    if (takeQuoteMark(line)) return this.#push({ type: 'quote', children: [] });
    return this.#startItem(line);
  }

  // A line that goes on with no open block still goes on with a paragraph, if nothing starts in it.
  #addText(line) {
    const isLazy = this.#matched < this.#stack.length && this.#tip.type === 'paragraph' && !line.isBlank;
    if (!isLazy) this.#close(this.#matched);
    const tip = this.#tip;
    if (line.isBlank) return;
    if (tip.type === 'paragraph') {
      tip.lines.push(line.content);
      tip.end = this.#number;
    } else if (tip.type === 'table') tip.rows.push(cellsOf(strip(line.content)).slice(0, tip.alignments.length));
    else this.#push({ type: 'paragraph', lines: [line.content] });
  }

  #startIndentedCode(line) {
    if (this.#tip.type === 'paragraph') return false;
    line.skipColumns(CODE_INDENT);
    return this.#push({ type: 'code', language: '', lines: [line.rest] });
  }

  #startHeading(line) {
    const marks = HEADING.exec(line.content)?.[0];
    if (!marks) return false;
    return this.#push({ type: 'heading', level: marks.length, text: withoutClosingMarks(strip(line.content.slice(marks.length))) });
  }

  #startFence(line) {
    const marks = FENCE.exec(line.content)?.[0];
    if (!marks) return false;
    const language = unescape(strip(line.content.slice(marks.length)));
    return this.#push({ type: 'code', language, lines: [], fence: { marks, indent: line.indent } });
  }

  #startHtml(line) {
    const found = htmlBlockOf(line.content, this.#tip.type === 'paragraph');
    if (!found) return false;
    this.#push({ type: 'html', lines: [], ends: found.end });
    this.#addHtml(this.#tip, line);
    return true;
  }

  // Makes the paragraph above a heading.
  #underline(line) {
    const marks = this.#current.type === 'paragraph' && UNDERLINE.exec(line.content);
    if (!marks) return false;
    const paragraph = this.#current;
    const text = strip(takeDefinitions(paragraph.lines.join('\n'), this.#definitions, paragraph.position));
    paragraph.lines = text ? [text] : [];
    if (!text) return false;
    Object.assign(paragraph, { type: 'heading', level: marks[1] ? 1 : 2, text });
    return true;
  }

  #startTable(line) {
    const paragraph = this.#current;
    const alignments = paragraph.type === 'paragraph' && paragraph.lines.length && alignmentsOf(line.content);
    if (!alignments || cellsOf(strip(paragraph.lines.at(-1))).length !== alignments.length) return false;
    this.#openTable(paragraph, alignments);
    return true;
  }

  // The last line of the paragraph becomes the table's head. What is before it stays a paragraph.
  #openTable(paragraph, alignments) {
    const head = cellsOf(strip(paragraph.lines.pop()));
    const table = { type: 'table', alignments, rows: [head] };
    this.#push(table);
    const siblings = this.#stack.at(-2).children;
    return Object.assign(table, { position: paragraph.position, isCut: siblings.at(-2) === paragraph });
  }

  #startRule(line) {
    return RULE.test(line.content) && this.#push({ type: 'rule' });
  }

  #startItem(line) {
    const found = MARKER.exec(line.content);
    if (!found || (this.#current.type === 'paragraph' && !interrupts(found, line))) return false;
    const [marker, number] = found;
    const kind = marker.at(-1);
    const indent = line.indent;
    line.skip(marker.length);
    // After five columns the content is code, which starts one column after the marker.
    const space = line.isBlank || line.indent > CODE_INDENT ? 1 : line.indent;
    line.skipColumns(Math.min(space, line.indent));
    if (this.#current.type !== 'list' || this.#current.kind !== kind) {
      this.#push({ type: 'list', kind, isOrdered: number !== undefined, start: Number(number ?? 1), children: [] });
    }
    return this.#push({ type: 'item', marker, width: indent + marker.length + space, children: [] });
  }

  // Closes what the line does not go on with, and what cannot hold the block. Always true.
  #push(block) {
    this.#close(this.#matched);
    while (!canHold(this.#tip, block)) this.#close(this.#stack.length - 1);
    this.#tip.children.push(block);
    this.#stack.push(block);
    this.#matched = this.#stack.length;
    Object.assign(block, { position: this.#position, line: this.#number, end: this.#number });
    return true;
  }

  #close(count) {
    while (this.#stack.length > count) {
      const block = this.#stack.pop();
      FINISH[block.type]?.(block, this.#tip, this.#definitions);
    }
  }
}

// Whole lines end; the last one may be empty.
function* linesOf(text, from) {
  const ends = /\r\n?|\n/g;
  ends.lastIndex = from;
  let position = from;
  const line = (end, isWhole) => ({ content: text.slice(position, end).replaceAll('\0', '\ufffd'), position, isWhole });
  for (let end; (end = ends.exec(text)); position = ends.lastIndex) yield line(end.index, true);
  yield line(text.length, false);
}

// A table that was cut off a paragraph is read again with it.
function resumeAt(blocks, from) {
  let index = Math.max(blocks.length - 1, 0);
  while (blocks[index]?.isCut) index -= 1;
  return { index, position: blocks[index]?.position ?? from };
}

function isClosed({ marks }, line) {
  const { content } = line;
  return line.indent < CODE_INDENT && content.startsWith(marks) && strip(content) === marks[0].repeat(strip(content).length);
}

// Closing marks are not shown: `## Title ##`.
function withoutClosingMarks(text) {
  let end = text.length;
  while (text[end - 1] === '#') end -= 1;
  return end === 0 || ' \t'.includes(text[end - 1]) ? strip(text.slice(0, end)) : text;
}

// In the middle of a paragraph, `2.` and an empty `-` are text.
function interrupts([marker, number], line) {
  return strip(line.content).length > marker.length && Number(number ?? 1) === 1;
}

const canHold = (parent, block) => Boolean(parent.children) && (parent.type === 'list') === (block.type === 'item');

// What is known when a block ends.
const FINISH = {
  paragraph(block, parent, definitions) {
    const text = strip(takeDefinitions(block.lines.join('\n'), definitions, block.position));
    // It is the newest of its parent.
    if (text === '' || (block.isOpen && HELD_PARAGRAPH.test(text))) parent.children.pop();
    else block.text = text;
  },
  code(block) {
    while (!block.fence && strip(block.lines.at(-1)) === '') block.lines.pop();
    block.text = block.lines.join('\n');
  },
  html(block) {
    block.text = block.lines.join('\n');
  },
  quote: endWithChild,
  item(block) {
    block.end = block.line;
    endWithChild(block);
    const [first] = block.children;
    const task = first?.type === 'paragraph' && TASK.exec(first.text);
    if (task) Object.assign(first, { text: first.text.slice(task[0].length), task: { isDone: task[1] !== ' ' } });
  },
  list(block) {
    endWithChild(block);
    block.isLoose = hasGap(block.children) || block.children.some((item) => hasGap(item.children));
  },
};

function endWithChild(block) {
  block.end = Math.max(block.type === 'list' ? 0 : block.end, block.children.at(-1)?.end ?? 0);
}

// Whether there is a blank line between two of the blocks.
const hasGap = (blocks) => blocks.some((block, i) => i > 0 && blocks[i - 1].end + 1 < block.line);
