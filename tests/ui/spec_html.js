// What the page's Markdown parser makes of texts, as the HTML in which CommonMark's specification writes what it expects.
// One function, given to the browser as it is; the page itself never makes HTML.
async (texts) => {
  const { parseBlocks } = await import('/ui/js/markdown/blocks.js');
  const { parseInline } = await import('/ui/js/markdown/inline.js');
  const { Definitions } = await import('/ui/js/markdown/links.js');

  const escaped = (text) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
  const languageClass = (language) => (language ? ` class="language-${escaped(language.split(/\s/)[0])}"` : '');
  const titleAttribute = (title) => (title ? ` title="${escaped(title)}"` : '');
  const textOf = (nodes) => nodes.map((node) => node.text ?? textOf(node.children ?? [])).join('');
  // As the specification's own converter writes addresses.
  const address = (href) => escaped(href.replace(/%(?![0-9a-f]{2})|[^\w;/?:@&=+$,\-.!~*'()#%]+/gi, encodeURIComponent));

  const inlines = {
    text: ({ text }) => escaped(text),
    html: ({ text }) => text,
    code: ({ text }) => `<code>${escaped(text)}</code>`,
    break: () => '<br />\n',
    em: ({ children }) => `<em>${inlineHtml(children)}</em>`,
    strong: ({ children }) => `<strong>${inlineHtml(children)}</strong>`,
    del: ({ children }) => `<del>${inlineHtml(children)}</del>`,
    link: ({ href, title, children }) => `<a href="${address(href)}"${titleAttribute(title)}>${inlineHtml(children)}</a>`,
    image: ({ href, title, children }) => `<img src="${address(href)}" alt="${escaped(textOf(children))}"${titleAttribute(title)} />`,
  };
  const inlineHtml = (nodes) => nodes.map((node) => inlines[node.type](node)).join('');

  const convert = (text) => {
    const definitions = new Definitions();
    const { blocks } = parseBlocks(text, definitions);
    const inside = (part) => inlineHtml(parseInline(part, (label) => definitions.find(label)));

    const kinds = {
      paragraph: ({ text: part }) => `<p>${inside(part)}</p>\n`,
      heading: ({ level, text: part }) => `<h${level}>${inside(part)}</h${level}>\n`,
      rule: () => '<hr />\n',
      html: ({ text: part }) => `${part}\n`,
      code: ({ language, text: part }) => `<pre><code${languageClass(language)}>${escaped(part && `${part}\n`)}</code></pre>\n`,
      quote: ({ children }) => `<blockquote>\n${blockHtml(children)}</blockquote>\n`,
      list: ({ isOrdered, start, isLoose, children }) => {
        const tag = isOrdered ? 'ol' : 'ul';
        return `<${tag}${start === 1 ? '' : ` start="${start}"`}>\n${children.map((item) => itemHtml(item, isLoose)).join('')}</${tag}>\n`;
      },
    };
    const blockHtml = (nodes) => nodes.map((node) => kinds[node.type](node)).join('');
    // Paragraphs of a tight list have no tags; other blocks begin a line of their own.
    const itemHtml = ({ children }, isLoose) => {
      let html = '<li>';
      for (const block of children) {
        const isBare = block.type === 'paragraph' && !isLoose;
        if (!isBare && !html.endsWith('\n')) html += '\n';
        html += isBare ? inside(block.text) : blockHtml([block]);
      }
      return `${html}</li>\n`;
    };
    return blockHtml(blocks);
  };

  return texts.map(convert);
}
