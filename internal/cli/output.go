package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"tidemark/errcode"
)

// format is how data is written: table, json or jsonl.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatJSONL format = "jsonl"
)

func (f *format) String() string { return string(*f) }

// Type is the word behind the flag's name in help texts.
func (f *format) Type() string { return "format" }

// Set refuses all but the three.
func (f *format) Set(text string) error {
	switch v := format(text); v {
	case formatTable, formatJSON, formatJSONL:
		*f = v
		return nil
	}
	return errors.New("want table, json or jsonl")
}

// addOutput adds --output.
func addOutput(fl *pflag.FlagSet, f *format) {
	if *f == "" {
		*f = formatTable
	}
	fl.Var(f, "output", "table, json or jsonl (one line for each thing)")
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
	case formatJSON:
		return printJSON(w, v, false)
	case formatJSONL:
		for _, i := range items {
			if err := printJSON(w, i, true); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	table(t)
	return t.Flush()
}

// printJSON writes v with indentation, or on one line for jsonl.
func printJSON(w io.Writer, v any, oneLine bool) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if !oneLine {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(v)
}

// isTerminal reports whether a stream is a terminal, so that a bar may be drawn or a question asked.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// noColor is what NO_COLOR (https://no-color.org) or a dumb terminal asks for.
func noColor() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }

// confirm asks before something is destroyed; yes answers beforehand. Without a terminal nobody can be asked.
func confirm(s Streams, yes bool, what string) error {
	if yes {
		return nil
	}
	if !isTerminal(s.In) {
		return usage("this would %s; say --yes if that is what you want", what)
	}
	fmt.Fprintf(s.Err, "%s? [y/N] ", what)
	var answer string
	if _, err := fmt.Fscanln(s.In, &answer); err != nil || answer != "y" && answer != "Y" && answer != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}

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
