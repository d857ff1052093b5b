package wire

import "strings"

// Cut returns text as valid UTF-8 of at most most bytes, with "…" in the place of what is cut off. A receiver refuses
// a whole message for one string that is not valid UTF-8.
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
