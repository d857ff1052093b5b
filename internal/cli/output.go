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

// format is the form of output data: table, json, jsonl, yaml or csv.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatJSONL format = "jsonl"
	formatYAML  format = "yaml"
	formatCSV   format = "csv"
)

// formats lists all of them, for completion and error messages.
var formats = []string{string(formatTable), string(formatJSON), string(formatJSONL), string(formatYAML),
	string(formatCSV)}

// each returns the format for items that are written one by one: json then becomes one line per item.
func (f format) each() format {
	if f == formatJSON {
		return formatJSONL
	}
	return f
}

func (f *format) String() string { return string(*f) }

// Type returns the word after the flag's name in help texts.
func (f *format) Type() string { return "format" }

// Set accepts only the formats.
func (f *format) Set(text string) error {
	if !slices.Contains(formats, text) {
		return errors.New("want table, json, jsonl, yaml or csv")
	}
	*f = format(text)
	return nil
}

// rowIf prints a row with a name and a text, unless the text is empty.
func rowIf(t io.Writer, name, text string) {
	if text != "" {
		fmt.Fprintf(t, "%s\t%s\n", name, text)
	}
}

// remark prints a note below a table, unless the text is empty.
func remark(t io.Writer, text, of string, args ...any) {
	if text != "" {
		fmt.Fprintf(t, "\n%s: %s\n", fmt.Sprintf(of, args...), text)
	}
}

// plain returns a text of a document for use in tables: characters that would break a row, or control the terminal
// (ESC, and those that change the direction of writing), are replaced by their numbers, because the author of a
// document must not control the user's screen. A byte that is not UTF-8 becomes U+FFFD, as in JSON.
func plain(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, isControl) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if isControl(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isControl reports whether a character controls the terminal or breaks a line, or changes the direction of writing.
func isControl(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// addOutput adds --output.
func addOutput(fl *pflag.FlagSet, f *format) {
	if *f == "" {
		*f = formatTable
	}
	fl.VarP(f, "output", "o", "table, json, jsonl (one line per object), yaml or csv (lists and scans)")
}

// counted returns a number with its noun.
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

// write writes v: as indented JSON, on one line for jsonl, or as a YAML document with the same names in the same
// order.
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

// block gives a node read from JSON the usual YAML style: blocks, and quotes only where necessary.
func block(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		n.Style = 0 // the encoder quotes strings that would be read as another type
	} else if len(n.Content) > 0 {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}

// isTerminal reports whether a stream is a terminal, on which a progress bar or a question can be shown.
func isTerminal(stream any) bool {
	if sink, ok := stream.(*logging.Sink); ok {
		stream = sink.Under()
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// noColor reports whether NO_COLOR (https://no-color.org) or a dumb terminal requires output without colors.
func noColor() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }

// watchFlag adds --watch, whose interval is optional.
func watchFlag(fl *pflag.FlagSet, every *time.Duration) {
	fl.DurationVar(every, "watch", 0, "look for changes at this interval, `EVERY`, and print again when there are any, "+
		"until Ctrl-C")
	fl.Lookup("watch").NoOptDefVal = "1s"
}

const clearScreen = "\x1b[H\x1b[2J"

// repeat shows the output of render whenever it has changed, until ctx ends. A transient failure (such as a change of
// the leader) is reported once and retried; any other error, and a failure of the first call, ends it.
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

// transient reports whether a retry may succeed.
func transient(err error) bool {
	code := exitCode(err)
	return code == errcode.ExitUnavailable || code == errcode.ExitTimeout
}

// redraw writes text; on a terminal it replaces what is there.
func redraw(w io.Writer, text []byte) error {
	if isTerminal(w) && !noColor() {
		text = append([]byte(clearScreen), text...)
	}
	_, err := w.Write(text)
	return err
}
