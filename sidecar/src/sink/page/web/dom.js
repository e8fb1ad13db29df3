// The one way by which anything gets onto the page: as text. Nothing here takes markup.

const at = id => document.getElementById(id);

// An element with a class, and children that are elements or text.
function el(tag, cls, ...children) {
  const made = document.createElement(tag);
  if (cls) made.className = cls;
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

// Text that others chose: its direction ends where it ends.
function told(text) {
  const made = document.createElement('bdi');
  made.textContent = text;
  return made;
}

function fill(id, ...children) {
  at(id).replaceChildren(...children.filter(child => child !== null && child !== undefined));
}

// A table of rows of text; the first row is its head.
function table(head, rows, cls) {
  const line = (tag, cells) => el('tr', null, ...cells.map(cell => el(tag, null, cell instanceof Node ? cell : told(String(cell)))));
  const made = el('table', cls, el('thead', null, line('th', head)), el('tbody', null, ...rows.map(row => line('td', row))));
  made.querySelectorAll('th').forEach(cell => cell.setAttribute('scope', 'col'));
  return el('div', 'wide', made);
}

// Shows lines of text beside the pointer; none: hides them.
function tip(event, lines) {
  const box = at('tip');
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(...lines.map(line => el('p', null, told(line))));
  const [width, height] = [box.offsetWidth, box.offsetHeight];
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  box.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

// A canvas as large as its place, in the screen's own pixels or, for what is drawn cell by cell, in CSS pixels.
function canvas(id, height, sharp) {
  const made = typeof id === 'string' ? at(id) : id;
  const width = Math.max(50, Math.floor(made.parentElement.clientWidth || made.clientWidth));
  const scale = sharp ? Math.min(3, devicePixelRatio || 1) : 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (made.width !== w || made.height !== h) [made.width, made.height] = [w, h];
  made.style.height = `${height}px`;
  const pen = made.getContext('2d');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  return {pen, width, height};
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
