//! Builds the HTML of all pages. Text becomes markup only in this module.

use std::fmt::{Display, Write as _};

use paceline_health::text::sanitize;

/// Maximum number of characters of a text on a report's page.
const LONGEST: usize = 2000;

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// An HTML builder. Only literals of this program become markup. All other input is escaped as text.
#[derive(Debug, Default)]
pub(crate) struct Html(String);

impl Html {
    /// Appends markup.
    pub(crate) fn tag(&mut self, literal: &'static str) -> &mut Html {
        self.0.push_str(literal);
        self
    }

    /// Appends text from any source. The text is truncated, and invisible characters are made visible.
    pub(crate) fn text(&mut self, text: impl Display) -> &mut Html {
        self.0
            .push_str(&escape(&sanitize::clip(&text.to_string(), LONGEST)));
        self
    }

    /// Appends multi-line text, for an element that preserves line breaks.
    pub(crate) fn lines(&mut self, text: &str) -> &mut Html {
        for (number, line) in text.lines().enumerate() {
            self.tag(if number == 0 { "" } else { "\n" }).text(line);
        }
        self
    }

    /// Appends a number for an attribute, such as a position or a length.
    pub(crate) fn number(&mut self, value: f64) -> &mut Html {
        let value = if value.is_finite() { value } else { 0.0 };
        // Writing to a string does not fail.
        let _ = write!(self.0, "{:.1}", value);
        self
    }

    /// Appends an element that contains only text.
    pub(crate) fn element(
        &mut self,
        open: &'static str,
        text: impl Display,
        close: &'static str,
    ) -> &mut Html {
        self.tag(open).text(text).tag(close)
    }

    /// Appends a PNG as a data URL.
    pub(crate) fn png(&mut self, bytes: &[u8]) -> &mut Html {
        self.0.push_str("data:image/png;base64,");
        self.0.push_str(&paceline_health::codec::base64::encode(bytes));
        self
    }

    /// Appends a part that was built separately.
    pub(crate) fn part(&mut self, part: Html) -> &mut Html {
        self.0.push_str(&part.0);
        self
    }

    /// Returns a complete page that has no external resources or scripts, so that its content cannot load or run
    /// anything.
    pub(crate) fn page(title: impl Display, style: &'static str, body: Html) -> String {
        let mut page = Html::default();
        page.tag("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n")
            .tag("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ")
            .tag("style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">\n")
            .tag("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n")
            .tag("<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n<title>")
            .text(title)
            .tag("</title>\n<style>")
            .tag(style)
            .tag("</style>\n</head>\n<body>\n")
            .part(body)
            .tag("</body>\n</html>\n");
        page.0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Elements without an end tag.
    const VOID: [&str; 5] = ["meta", "link", "br", "img", "hr"];

    /// Asserts that all elements are closed in order, and that all attribute quotes are closed.
    pub(crate) fn assert_balanced(page: &str) {
        let body = page.strip_prefix("<!doctype html>").unwrap_or(page);
        let mut open: Vec<String> = Vec::new();
        let mut rest = body;
        while let Some(at) = rest.find('<') {
            let tag = &rest[at + 1..];
            let end = tag.find('>').unwrap_or_else(|| panic!("no end: {:.80}", tag));
            let inside = &tag[..end];
            assert_eq!(inside.matches('"').count() % 2, 0, "quotes: {inside}");
            rest = &tag[end + 1..];
            let name: String = inside
                .trim_start_matches('/')
                .chars()
                .take_while(char::is_ascii_alphanumeric)
                .collect();
            if inside.starts_with('/') {
                assert_eq!(open.pop().as_deref(), Some(&*name), "{:.80}", rest);
            } else if name == "style" {
                rest = &rest[rest.find("</style>").expect("an end of the style") + 8..];
            } else if !inside.ends_with('/') && !VOID.contains(&&*name) {
                open.push(name);
            }
        }
        assert_eq!(open, Vec::<String>::new(), "still open");
    }

    #[test]
    fn whatever_comes_in_stays_text() {
        let hostile = "</title><script>alert(1)</script>\x1b[31m\u{202e}\"'&\n";
        let mut body = Html::default();
        body.element("<p title=\"", hostile, "\">")
            .element("<b>", hostile, "</b></p>");
        let page = Html::page(hostile, "p{color:red}", body);
        assert_balanced(&page);
        assert!(!page.contains("<script") && !page.contains('\x1b') && !page.contains('\u{202e}'));
        assert_eq!(
            page.matches("&lt;script&gt;alert(1)&lt;/script&gt;␛[31m").count(),
            3
        );
        assert!(page.contains("&quot;&#39;&amp;"));
    }

    #[test]
    fn a_megabyte_of_a_name_is_cut() {
        let mut html = Html::default();
        html.text("<".repeat(1 << 20));
        assert_eq!(html.0.len(), LONGEST * 4 + "…".len());
    }

    #[test]
    fn no_number_breaks_an_attribute() {
        let mut html = Html::default();
        html.number(1.25)
            .tag(" ")
            .number(f64::NAN)
            .tag(" ")
            .number(f64::INFINITY);
        assert_eq!(html.0, "1.2 0.0 0.0");
    }
}
