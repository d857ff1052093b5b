package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"tidemark/client"
)

// errInterrupted is wrapped if a command was ended by Ctrl-C or an equivalent signal.
var errInterrupted = errors.New("interrupted")

// interrupted converts the error of a command (not of a role) that was ended by the end of ctx: it adds that the
// command was interrupted, and keeps the text. Other errors are returned unchanged.
func interrupted(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	text := err.Error()
	for _, cause := range []error{context.Canceled, context.Cause(ctx)} {
		if text == cause.Error() {
			return errInterrupted
		}
		text = strings.ReplaceAll(text, ": "+cause.Error(), "")
	}
	if what, waited := strings.CutPrefix(text, client.ErrUnavailable.Error()+" "); waited {
		return fmt.Errorf("%w %s", errInterrupted, what)
	}
	return fmt.Errorf("%w: %s", errInterrupted, text)
}

// confirm asks the user before something is destroyed, unless yes is set. Without a terminal it returns a usage
// error.
func confirm(ctx context.Context, s Streams, yes bool, what string) error {
	if yes {
		return nil
	}
	f, ok := s.In.(*os.File)
	if !ok || !isTerminal(f) {
		return usage("this would %s; confirm with --yes", what)
	}
	answer, err := typedLine(ctx, f, s.Err, what+"? [y/N] ", true)
	switch strings.TrimSpace(answer) {
	case "y", "Y", "yes":
		return nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	return errors.New("nothing was changed")
}

// ask is like confirm, but does not require --yes of scripts: it asks on a terminal only.
func ask(ctx context.Context, s Streams, yes bool, what string) error {
	return confirm(ctx, s, yes || !isTerminal(s.In), what)
}

// askSecret reads a secret from the terminal after a prompt. Without a terminal it returns a usage error with the
// alternatives.
func askSecret(ctx context.Context, s Streams, prompt, otherwise string) (string, error) {
	f, ok := s.In.(*os.File)
	if !ok || !isTerminal(f) {
		return "", usage("%s: standard input is not a terminal; give %s", prompt, otherwise)
	}
	text, err := typedLine(ctx, f, s.Err, prompt+": ", false)
	switch {
	case errors.Is(err, io.EOF):
		return "", fmt.Errorf("%s: the input was empty", prompt)
	case err != nil:
		return "", err
	}
	return secretLine(strings.NewReader(text))
}

// Keys that are not text.
const (
	keyInterrupt = 3  // Ctrl-C
	keyEnd       = 4  // Ctrl-D
	keyErase     = 8  // Ctrl-H
	keyEraseAll  = 21 // Ctrl-U
	keyDelete    = 127
)

// typedLine reads a line from a terminal after a prompt, until ctx ends. It switches the terminal to raw mode and
// restores its mode at the end. It returns errInterrupted for Ctrl-C, and io.EOF for Ctrl-D on an empty line.
func typedLine(ctx context.Context, f *os.File, echo io.Writer, prompt string, shown bool) (string, error) {
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return "", fmt.Errorf("reading from the terminal: %w", err)
	}
	defer func(w io.Writer) {
		fmt.Fprint(w, "\r\n")
		_ = term.Restore(int(f.Fd()), before)
	}(echo)
	if fmt.Fprint(echo, prompt); !shown {
		echo = io.Discard
	}
	var line []byte
	for {
		key, err := nextKey(ctx, f)
		switch {
		case err != nil:
			return "", err
		case key == keyInterrupt:
			return "", errInterrupted
		case key == '\r', key == '\n':
			return string(line), nil
		case key == keyEnd && len(line) == 0:
			return "", io.EOF
		case key == keyEraseAll:
			for len(line) > 0 {
				line = eraseLast(line, echo)
			}
		case key == keyErase, key == keyDelete:
			line = eraseLast(line, echo)
		case key >= ' ' && len(line) <= maxSecret:
			line = append(line, key)
			_, _ = echo.Write(line[len(line)-1:])
		}
	}
}

// eraseLast removes the last character, also from the terminal.
func eraseLast(line []byte, echo io.Writer) []byte {
	if len(line) == 0 {
		return line
	}
	_, n := utf8.DecodeLastRune(line)
	fmt.Fprint(echo, "\b \b")
	return line[:len(line)-n]
}

// nextKey waits for a byte until ctx ends.
func nextKey(ctx context.Context, f *os.File) (byte, error) {
	type key struct {
		b   byte
		err error
	}
	pressed := make(chan key, 1)
	// If ctx ends first, the goroutine keeps reading: the process usually ends with it, but in a shell, which continues,
	// it consumes the next byte.
	go func() {
		var b [1]byte
		n, err := f.Read(b[:])
		if n == 1 {
			err = nil
		}
		pressed <- key{b[0], err}
	}()
	select {
	case k := <-pressed:
		return k.b, k.err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			return 0, errInterrupted
		}
		return 0, ctx.Err()
	}
}
