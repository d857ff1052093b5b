package wire

import "strings"

// Cut returns a text as a message takes it: of at most so many bytes, with "…" in the place of what is left out, and in
// valid UTF-8. Who reads a message refuses all of it for one text that is not.
func Cut(text string, most int) string {
	const more = "…"
	text = strings.ToValidUTF8(text, "\ufffd")
	if len(text) <= most {
		return text
	}
	if most < len(more) {
		return ""
	}
	return strings.ToValidUTF8(text[:most-len(more)], "") + more
}
