package scan

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxBrief bounds the bounds of a request in one line, in bytes.
const maxBrief = 160

// Brief returns a short line that describes the rows a request selects. An omission in long bounds is marked with
// "…".
func (r *Request) Brief() string {
	var b strings.Builder
	switch {
	case r.Equal != nil:
		b.WriteString("equal " + briefValues(r.Equal))
	case r.Range != nil:
		b.WriteString(r.Range.brief())
	case len(r.Ranges) > 0:
		fmt.Fprintf(&b, "%d ranges, the first %s", len(r.Ranges), r.Ranges[0].brief())
	default:
		b.WriteString("all")
	}
	text := b.String()
	if len(text) > maxBrief {
		text = text[:maxBrief]
		for !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
		text += "…"
	}
	if n := len(r.Where); n > 0 {
		text += fmt.Sprintf(", %d conditions", n)
	}
	text += r.briefGroups()
	if r.Offset > 0 {
		text += fmt.Sprintf(", offset %d", r.Offset)
	}
	if r.Limit > 0 {
		text += fmt.Sprintf(", limit %d", r.Limit)
	}
	if r.Reverse {
		text += ", reverse"
	}
	if r.Distinct {
		text += ", distinct"
	}
	return text
}

func (b *Bounds) brief() string {
	var text string
	switch {
	case b.Low == nil && b.High == nil:
		return "all"
	case b.High == nil:
		text = "from " + briefValues(b.Low)
	case b.Low == nil:
		text = "to " + briefValues(b.High)
	default:
		text = briefValues(b.Low) + " to " + briefValues(b.High)
	}
	if b.Inclusion != "" && b.Inclusion != Both {
		text += " (inclusion " + string(b.Inclusion) + ")"
	}
	return text
}

// briefValues returns values as a JSON array, cut to what a line may have.
func briefValues(values []json.RawMessage) string {
	text := []byte{'['}
	for i, v := range values {
		if i > 0 {
			text = append(text, ", "...)
		}
		if text = append(text, v[:min(len(v), maxBrief+1)]...); len(text) > maxBrief {
			break
		}
	}
	return strings.ToValidUTF8(string(append(text, ']')), "")
}
