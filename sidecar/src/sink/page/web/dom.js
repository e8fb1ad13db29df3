// All content is put onto the page with these functions, and only as text. None of them accepts markup.

const at = id => document.getElementById(id);

// Creates an element with a class, and with children that are elements or text.
function el(tag, cls, ...children) {
  const made = document.createElement(tag);
  if (cls) made.className = cls;
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

// Wraps text from other sources, so that its text direction does not affect the text after it.
function told(text) {
  const made = document.createElement('bdi');
  made.textContent = text;
  return made;
}

function fill(id, ...children) {
  at(id).replaceChildren(...children.filter(child => child !== null && child !== undefined));
}

// Creates a table from rows of text, below a header row.
function table(head, rows, cls) {
  const line = (tag, cells) => el('tr', null, ...cells.map(cell => el(tag, null, cell instanceof Node ? cell : told(String(cell)))));
  const made = el('table', cls, el('thead', null, line('th', head)), el('tbody', null, ...rows.map(row => line('td', row))));
  made.querySelectorAll('th').forEach(cell => cell.setAttribute('scope', 'col'));
  return el('div', 'wide', made);
}

// Shows lines of text beside the pointer, or hides them if there are none.
function tip(event, lines) {
  const box = at('tip');
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(...lines.map(line => el('p', null, told(line))));
  const [width, height] = [box.offsetWidth, box.offsetHeight];
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  box.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

// Prepares a canvas as large as its place. It uses the screen's own pixels, or CSS pixels for content that is drawn
// cell by cell.
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
