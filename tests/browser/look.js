// What can be seen of our outputs in a page of JupyterLab or Notebook 7; `window.look`
// in tests.
window.look = (() => {
  const OUTPUT = '.jp-RenderedHTML.jp-OutputArea-output';
  const SLACK = 1.5; // pixels; rectangles are fractions, scroll widths are not

  const outputs = () => [...document.querySelectorAll(OUTPUT)];
  const brief = text => text.replace(/\s+/g, ' ').trim().slice(0, 60);

  // Every element with its attributes and own words, styles as the browser reads them.
  const tree = root => [...root.querySelectorAll('*')].map(element => [
    element.localName,
    Object.fromEntries([...element.attributes].filter(({name}) => name !== 'open')
      .map(({name, value}) =>
        [name, name === 'style' ? element.style.cssText : value])),
    [...element.childNodes].filter(node => node.nodeType === Node.TEXT_NODE)
      .map(node => node.data.trim()).join('|'),
  ]);
  const written = html =>
    tree(new DOMParser().parseFromString(html, 'text/html').body);

  // What takes up room: each line of each text, pictures, and the tracks of bars.
  const textItems = output => {
    const walker = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (!node.data.trim()) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      found.push({of: node.parentElement, text: brief(node.data),
                  rects: [...range.getClientRects()]});
    }
    return found;
  };
  const isShape = element => element.localName === 'img' ||
    (!element.childNodes.length && element.style.display === 'inline-grid');
  const shapeItems = output => [...output.querySelectorAll('*')].filter(isShape)
    .map(of => ({of, text: of.alt || 'bar', rects: [of.getBoundingClientRect()]}));
  const items = output => [...textItems(output), ...shapeItems(output)];

  const isVisible = item => item.rects.some(rect => rect.width && rect.height) &&
    item.of.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const invisible = output =>
    items(output).filter(item => !isVisible(item)).map(item => item.text);

  const sticksOut = (rect, box) =>
    rect.left < box.left - SLACK || rect.right > box.right + SLACK;
  const beyond = (item, box) => item.rects.some(rect => sticksOut(rect, box));
  const clips = element => getComputedStyle(element).overflowX !== 'visible';

  // A table may be wider than the output, which then scrolls. Nothing else may be.
  const cutOff = output => items(output).filter(item => {
    const holder = item.of.closest('td, th, caption');
    if (holder) return beyond(item, holder.getBoundingClientRect());
    for (let box = item.of; box !== output.parentElement; box = box.parentElement)
      if (clips(box) && beyond(item, box.getBoundingClientRect())) return true;
    return false;
  }).map(item => item.text);

  // What stands beside a bar or picture, and can only be seen by scrolling.
  const pushedOut = output => {
    const box = output.getBoundingClientRect();
    const rows = [...output.querySelectorAll('tr')]
      .filter(row => [...row.querySelectorAll('*')].some(isShape));
    return rows.flatMap(textItems).filter(item => beyond(item, box))
      .map(item => item.text);
  };

  const meet = (one, other) =>
    Math.min(one.right, other.right) - Math.max(one.left, other.left) > SLACK &&
    Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 2 * SLACK;
  const overlapping = output => {
    const all = items(output).flatMap(item =>
      item.rects.map(rect => ({rect, text: item.text})));
    return all.flatMap((one, place) => all.slice(place + 1)
      .filter(other => meet(one.rect, other.rect))
      .map(other => `${one.text} / ${other.text}`));
  };

  // A filled word looks torn where it is broken; a sentence on a fill may be.
  const isBadge = element => element.style.backgroundColor &&
    element.innerText.length <= 32;
  const torn = output => [...output.querySelectorAll('span')].filter(isBadge)
    .filter(element => element.getClientRects().length > 1)
    .map(element => brief(element.innerText));

  const faultsOf = image => [
    image.complete && image.naturalWidth > 0 ? null : `not loaded: ${image.alt}`,
    image.alt.trim() ? null : 'a picture without a name',
  ].filter(Boolean);
  const badPictures = output =>
    [...output.querySelectorAll('img')].flatMap(faultsOf);

  const openDetails = () => {
    for (const each of document.querySelectorAll(`${OUTPUT} details`)) each.open = true;
  };

  // What each code cell shows, of whatever kind, and whether the page trusts it.
  const shownBy = cell => [...cell.querySelectorAll('.jp-OutputArea-output')]
    .map(output => ({
      kind: output.dataset.mimeType,
      words: output.innerText,
      trusted: output.classList.contains('jp-mod-trusted'),
    }));
  const cells = () => [...document.querySelectorAll('.jp-CodeCell')].map(shownBy);
  // What is written in the last cell, and what can be put there.
  const lastLine = () =>
    [...document.querySelectorAll('.jp-Notebook .cm-line')].pop()?.textContent ?? '';
  // Of a long list JupyterLab draws some lines in each frame, and leaves room below the
  // last one of them for those to come.
  const completer = () => {
    const items = [...document.querySelectorAll(
      '.jp-Completer:not(.lm-mod-hidden) .jp-Completer-item')];
    if (items.some(it => it.style.marginBottom)) return [];
    return items.map(it => it.querySelector('.jp-Completer-match').innerText);
  };
  const prompts = () => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
  const isNumbered = prompt => /\[\d+\]/.test(prompt.innerText);

  const of = see => outputs().map(see);
  return {
    OUTPUT,
    written,
    openDetails,
    cells,
    prompts,
    lastLine,
    completer,
    isNumbered,
    numbered: () => prompts().filter(isNumbered).length,
    trees: () => of(tree),
    words: () => of(output => output.innerText),
    vectors: () => of(output => output.querySelectorAll('svg').length),
    invisible: () => of(invisible),
    cutOff: () => of(cutOff),
    pushedOut: () => of(pushedOut),
    overlapping: () => of(overlapping),
    torn: () => of(torn),
    badPictures: () => of(badPictures),
  };
})();
