package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"tidemark/index"
	"tidemark/manager/api/v1"
)

// topKeysText is what ? shows.
const topKeysText = `q, Ctrl-C    end
s            sort the indexes by the next column
/            only indexes with a text in their names
Esc          show all again
up, down     scroll (k, j); Page Up, Page Down a page
?            these keys, and back`

// topOrders lists the orders of indexes, in the sequence of the key s.
var topOrders = []string{"state", "name", "entries", "scans", "latency"}

// topScreen is the user's selection on a terminal.
type topScreen struct {
	order  int // index into topOrders
	filter string
	typing bool // the filter
	help   bool
	top    int // the first visible line
	page   int // number of visible lines
}

// key handles a key as sent by a terminal, and reports whether it ends top.
func (x *topScreen) key(k string) (quit bool) {
	if x.typing && k != "\x03" {
		x.letter(k)
		return false
	}
	switch k {
	case "q", "Q", "\x03", "\x04":
		return true
	case "?":
		x.help, x.top = !x.help, 0
	case "s":
		x.order = (x.order + 1) % len(topOrders)
	case "/":
		x.typing, x.filter, x.top = true, "", 0
	case "\x1b":
		x.filter, x.help, x.top = "", false, 0
	case "k", "\x1b[A", "\x1bOA":
		x.top--
	case "j", "\x1b[B", "\x1bOB":
		x.top++
	case "\x1b[5~":
		x.top -= x.page
	case "\x1b[6~", " ":
		x.top += x.page
	}
	return false
}

// letter handles a key while the filter is being typed.
func (x *topScreen) letter(k string) {
	switch {
	case k == "\r", k == "\n":
		x.typing = false
	case k == "\x1b":
		x.typing, x.filter = false, ""
	case k == "\x7f", k == "\b":
		_, n := utf8.DecodeLastRuneInString(x.filter)
		x.filter = x.filter[:len(x.filter)-n]
	case k >= " " && k[0] != 0x1b:
		x.filter += k
	}
}

// has reports whether an index matches the filter.
func (x *topScreen) has(i *v1.IndexInfo) bool {
	return x == nil || strings.Contains(strings.ToLower(i.Bucket+"/"+i.Name), strings.ToLower(x.filter))
}

// sort sorts the indexes of a view, which are ordered by state, in the selected order: the largest first.
func (x *topScreen) sort(v *topView) {
	if x == nil {
		return
	}
	entries := map[index.ID]uint64{}
	for i := range v.Stats.Indexes {
		entries[v.Stats.Indexes[i].ID] = v.Stats.Indexes[i].ItemsCount
	}
	slices.SortStableFunc(v.Indexes, func(a, b v1.IndexInfo) int {
		switch topOrders[x.order] {
		case "name":
			return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Name, b.Name))
		case "entries":
			return cmp.Compare(entries[b.ID], entries[a.ID])
		case "scans":
			return cmp.Compare(v.Scans[b.ID], v.Scans[a.ID])
		case "latency":
			return cmp.Compare(v.Latency[b.ID], v.Latency[a.ID])
		}
		return 0
	})
}

// frame returns the part of a text that fits on a terminal, with a line of keys at the bottom. No line wraps.
func (x *topScreen) frame(text string, width, height int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	x.page = max(1, height-1)
	x.top = max(0, min(x.top, len(lines)-x.page))
	shown := lines[x.top:min(len(lines), x.top+x.page)]
	var b strings.Builder
	b.WriteString(clearScreen)
	for _, l := range shown {
		b.WriteString(clip(l, width) + "\r\n")
	}
	b.WriteString(clip(x.below(len(lines)), width))
	return b.String()
}

// below returns the last line.
func (x *topScreen) below(lines int) string {
	if x.typing {
		return "/" + x.filter
	}
	text := "q ends, ? keys; by " + topOrders[x.order]
	if x.filter != "" {
		text += ", with " + x.filter
	}
	if lines > x.page {
		text += fmt.Sprintf("; lines %d-%d of %d", x.top+1, min(lines, x.top+x.page), lines)
	}
	return text
}

// lastLine writes messages while the screen is drawn: over its last line, until it is drawn again. The terminal
// is in raw mode, in which a line feed would not return to the left edge.
type lastLine struct{ screen io.Writer }

func (l lastLine) Write(p []byte) (int, error) {
	width, _ := sizeOf(l.screen)
	line := strings.ReplaceAll(strings.TrimRight(string(p), "\n"), "\n", " ")
	_, err := io.WriteString(l.screen, "\r\x1b[K"+clip(line, width))
	return len(p), err
}

// clip cuts a line at the width of a terminal.
func clip(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width])
}

// splitKeys splits what a terminal has sent at once into keys.
func splitKeys(text string) (keys []string) {
	for len(text) > 0 {
		n := 1
		if text[0] == 0x1b && len(text) > 2 && (text[1] == '[' || text[1] == 'O') {
			for n = 2; n < len(text) && (text[n] < '@' || text[n] > '~'); n++ {
			}
			n = min(n+1, len(text))
		} else if _, size := utf8.DecodeRuneInString(text); size > 1 {
			n = size
		}
		keys, text = append(keys, text[:n]), text[n:]
	}
	return keys
}

// keyboard returns the keys of a terminal one by one, until restore is called; nil if there is no terminal, or in
// a shell, which reads the keys itself.
func keyboard(ctx context.Context, s Streams) (keys <-chan string, restore func()) {
	in, isFile := s.In.(*os.File)
	if !isFile || !isTerminal(s.In) || !isTerminal(s.Out) || noScreen() || ctx.Value(sessionKey{}) != nil {
		return nil, func() {}
	}
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, func() {}
	}
	typed := make(chan string)
	go readKeys(ctx, in, typed) // its last read may still be pending when top ends, and the process with it
	return typed, func() {
		_ = term.Restore(int(in.Fd()), before)
		_, _ = io.WriteString(s.Out, "\n")
	}
}

// readKeys sends the keys of a terminal to typed until ctx ends.
func readKeys(ctx context.Context, in io.Reader, typed chan<- string) {
	piece := make([]byte, 64)
	for {
		n, err := in.Read(piece)
		for _, k := range splitKeys(string(piece[:n])) {
			select {
			case typed <- k:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			close(typed)
			return
		}
	}
}

// noScreen reports whether the terminal cannot draw in place.
func noScreen() bool { return os.Getenv("TERM") == "dumb" }

// sizeOf returns the size of the terminal, 80 by 24 if it is unknown.
func sizeOf(out any) (width, height int) {
	if f, ok := out.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 1 {
			return w, h
		}
	}
	return 80, 24
}
