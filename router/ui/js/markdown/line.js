// One line of Markdown and how far it has been read. Indentation is counted in columns: a tab goes to the next multiple
// of four, and may be read in part.

const TAB = 4;

export class Line {
  #text;
  #offset = 0;
  #column = 0;
  // Columns of the tab at the offset that are still to be read, if it was read in part.
  #ofTab = 0;
  #next;

  constructor(text) {
    this.#text = text;
    this.#look();
  }

  // Columns of white space before the content.
  get indent() {
    return this.#next.column - this.#column;
  }

  get isBlank() {
    return this.#next.offset === this.#text.length;
  }

  // What follows the white space, up to the end of the line.
  get content() {
    return this.#text.slice(this.#next.offset);
  }

  // Everything that is left, white space included.
  get rest() {
    return this.#ofTab > 0 ? ' '.repeat(this.#ofTab) + this.#text.slice(this.#offset + 1) : this.#text.slice(this.#offset);
  }

  // Reads the white space and `length` characters of the content.
  skip(length) {
    this.#column = this.#next.column + length;
    this.#offset = this.#next.offset + length;
    this.#ofTab = 0;
    this.#look();
  }

  // Reads `columns` of white space, which must be there.
  skipColumns(columns) {
    for (let left = columns; left > 0; ) {
      const width = this.#widthAt(this.#offset, this.#column);
      const read = Math.min(left, width);
      this.#ofTab = width - read;
      if (this.#ofTab === 0) this.#offset += 1;
      this.#column += read;
      left -= read;
    }
  }

  #look() {
    let [offset, column] = [this.#offset, this.#column];
    for (; this.#text[offset] === ' ' || this.#text[offset] === '\t'; offset += 1) column += this.#widthAt(offset, column);
    this.#next = { offset, column };
  }

  #widthAt(offset, column) {
    return this.#text[offset] === '\t' ? TAB - (column % TAB) : 1;
  }
}

// Without the spaces and tabs at both ends; other white space is content.
export function strip(text) {
  let [start, end] = [0, text.length];
  while (isSpace(text[start])) start += 1;
  while (end > start && isSpace(text[end - 1])) end -= 1;
  return text.slice(start, end);
}

const isSpace = (character) => character === ' ' || character === '\t';
