package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"

	"tidemark/errcode"
	"tidemark/internal/logging"
)

// format is how data is written: table, json, jsonl, yaml or csv.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatJSONL format = "jsonl"
	formatYAML  format = "yaml"
	formatCSV   format = "csv"
)

// formats are all of them, for completion and for what is said of another word.
var formats = []string{string(formatTable), string(formatJSON), string(formatJSONL), string(formatYAML),
	string(formatCSV)}

// each is how one thing of many is written that come one after the other: json is a line for each then.
func (f format) each() format {
	if f == formatJSON {
		return formatJSONL
	}
	return f
}

func (f *format) String() string { return string(*f) }

// Type is the word behind the flag's name in help texts.
func (f *format) Type() string { return "format" }

// Set refuses all but these.
func (f *format) Set(text string) error {
	if !slices.Contains(formats, text) {
		return errors.New("want table, json, jsonl, yaml or csv")
	}
	*f = format(text)
	return nil
}

// rowIf writes a row of a name and a text, where there is a text.
func rowIf(t io.Writer, name, text string) {
	if text != "" {
		fmt.Fprintf(t, "%s\t%s\n", name, text)
	}
}

// remark writes below a table what a text says of something, where there is a text.
func remark(t io.Writer, text, of string, args ...any) {
	if text != "" {
		fmt.Fprintf(t, "\n%s: %s\n", fmt.Sprintf(of, args...), text)
	}
}

// plain is a text of a document as tables have it: what would break a row, or is a command to a terminal (ESC, and what
// turns the direction of writing), stands there by its number. Whoever stores documents must not write on the screen of
// who looks at them. A byte that is no UTF-8 is U+FFFD, as in JSON.
func plain(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, steers) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if steers(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// steers reports whether a character is none to be read.
func steers(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// addOutput adds --output.
func addOutput(fl *pflag.FlagSet, f *format) {
	if *f == "" {
		*f = formatTable
	}
	fl.VarP(f, "output", "o", "table, json, jsonl (one line for each thing), yaml or csv (lists and scans)")
}

// counted is a number with its noun.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// show writes data: v as one JSON value, its items as one line each, or as a table.
func show[T any](w io.Writer, as format, v any, items []T, table func(t *tabwriter.Writer)) error {
	switch as {
	case formatJSON, formatYAML:
		return write(w, as, v)
	case formatJSONL:
		for _, i := range items {
			if err := write(w, as, i); err != nil {
				return err
			}
		}
		return nil
	case formatCSV:
		return writeCSV(w, items)
	}
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	table(t)
	return t.Flush()
}

// write writes v: as JSON with indentation, on one line for jsonl, as a document of YAML with the same names in the
// same order.
func write(w io.Writer, as format, v any) error {
	if as == formatCSV {
		return writeCSV(w, []any{v})
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if as == formatJSON {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(v); err != nil {
		return err
	}
	text := b.Bytes()
	if as == formatYAML {
		var n yaml.Node
		if err := yaml.Unmarshal(text, &n); err != nil {
			return err
		}
		block(&n)
		out, err := yaml.Marshal(&n)
		if err != nil {
			return err
		}
		text = append([]byte("---\n"), out...)
	}
	_, err := w.Write(text)
	return err
}

// block gives what was read as JSON the form that people expect of YAML: blocks, and quotes only where they are needed.
func block(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		n.Style = 0 // the encoder quotes what would be read as something else
	} else if len(n.Content) > 0 {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}

// isTerminal reports whether a stream is a terminal, so that a bar may be drawn or a question asked.
func isTerminal(stream any) bool {
	if sink, ok := stream.(*logging.Sink); ok {
		stream = sink.Under()
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// noColor is what NO_COLOR (https://no-color.org) or a dumb terminal asks for.
func noColor() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }

// watchFlag adds --watch, which takes a time but needs none.
func watchFlag(fl *pflag.FlagSet, every *time.Duration) {
	fl.DurationVar(every, "watch", 0, "show it again `EVERY` so often whenever it has changed, until Ctrl-C")
	fl.Lookup("watch").NoOptDefVal = "1s"
}

const clearScreen = "\x1b[H\x1b[2J"

// repeat shows again what render writes whenever it has changed, until ctx ends. What fails for a while (a leader that
// changes) is told once and tried again; anything else, and the first failure, ends it.
func repeat(ctx context.Context, s Streams, every time.Duration,
	render func(ctx context.Context, w io.Writer) error) error {
	if every < 0 {
		return usage("--watch %s: want a time above 0, such as 2s", every)
	}
	if every == 0 {
		return render(ctx, s.Out)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last []byte
	failing := false
	for {
		var b bytes.Buffer
		err := render(ctx, &b)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (last == nil || !transient(err)):
			return err
		case err != nil && !failing:
			fmt.Fprintf(s.Err, "tidemark: %v; trying again every %s\n", err, every)
		case err == nil && !bytes.Equal(b.Bytes(), last):
			last = b.Bytes()
			if err := redraw(s.Out, last); err != nil {
				return err
			}
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// transient reports whether err may be gone with the next try.
func transient(err error) bool {
	code := exitCode(err)
	return code == errcode.ExitUnavailable || code == errcode.ExitTimeout
}

// redraw writes text; on a terminal in the place of what is there.
func redraw(w io.Writer, text []byte) error {
	if isTerminal(w) && !noColor() {
		text = append([]byte(clearScreen), text...)
	}
	_, err := w.Write(text)
	return err
}
