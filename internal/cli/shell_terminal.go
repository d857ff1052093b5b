package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/peterh/liner"
)

// typedLines reads lines from a terminal. The terminal is in the editor's mode only while a line is being read:
// commands find it in its original mode.
type typedLines struct {
	editor  *liner.State
	before  liner.ModeApplier // the original mode
	edit    liner.ModeApplier
	history string // "": no history is kept
	err     io.Writer
}

func newTypedLines(words liner.WordCompleter, history string, err io.Writer) *typedLines {
	t := &typedLines{err: err, history: historyFile(history)}
	t.before, _ = liner.TerminalMode()
	t.editor = liner.NewLiner()
	t.edit, _ = liner.TerminalMode()
	t.editor.SetCtrlCAborts(true)
	t.editor.SetMultiLineMode(true)
	t.editor.SetTabCompletionStyle(liner.TabPrints)
	t.editor.SetWordCompleter(words)
	if f, err := os.Open(t.history); err == nil {
		_, _ = t.editor.ReadHistory(f) // as much as can be read
		_ = f.Close()
	}
	apply(t.before)
	return t
}

func apply(mode liner.ModeApplier) {
	if mode != nil {
		_ = mode.ApplyMode()
	}
}

// historyFile returns the path of the history file; "" for none.
func historyFile(given string) string {
	switch given {
	case standard, os.DevNull:
		return ""
	case "":
	default:
		return given
	}
	dir := os.Getenv("XDG_STATE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "tidemark", "history")
}

func (t *typedLines) next(prompt string) (string, error) {
	apply(t.edit)
	defer apply(t.before)
	line, err := t.editor.Prompt(prompt)
	switch {
	case errors.Is(err, liner.ErrPromptAborted):
		return "", errAbandoned
	case err != nil:
		return "", err
	}
	if !strings.HasPrefix(line, " ") && strings.TrimSpace(line) != "" {
		t.editor.AppendHistory(line)
	}
	return line, nil
}

// close stores the history and restores the terminal.
func (t *typedLines) close() {
	if err := t.save(); err != nil {
		fmt.Fprintf(t.err, "tidemark: the history was not saved: %v (--history FILE, or - for none)\n", err)
	}
	_ = t.editor.Close()
	apply(t.before)
}

func (t *typedLines) save() error {
	if t.history == "" {
		return nil
	}
	if err := replaceable(t.history); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(t.history), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(t.history), ".history.*") // mode 0600
	if err != nil {
		return err
	}
	_, err = t.editor.WriteHistory(f)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), t.history)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
