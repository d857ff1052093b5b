package cli

import (
	"fmt"
	"io"

	"github.com/schollz/progressbar/v3"
)

// bar shows progress in percent: a bar on a terminal, else a line for every 10 %.
type bar struct {
	w     io.Writer
	what  string
	tty   *progressbar.ProgressBar
	shown int
}

func newBar(w io.Writer, what string) *bar {
	b := &bar{w: w, what: what, shown: -1}
	if isTerminal(w) && !noColor() {
		b.tty = progressbar.NewOptions(100, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(what),
			progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(false))
	}
	return b
}

// set shows a percentage; lower ones than before are ignored.
func (b *bar) set(percent float64) {
	p := min(max(int(percent), 0), 100)
	if p <= b.shown {
		return
	}
	if b.tty != nil {
		b.shown = p
		_ = b.tty.Set(p) // a lost terminal is no reason to stop
		return
	}
	if p/10 > b.shown/10 || b.shown < 0 {
		b.shown = p
		fmt.Fprintf(b.w, "%s: %d %%\n", b.what, p)
	}
}

// note prints a line beside the progress.
func (b *bar) note(text string) {
	if b.tty != nil {
		_ = b.tty.Clear()
	}
	fmt.Fprintln(b.w, text)
}

// done ends the display.
func (b *bar) done(ok bool) {
	if ok {
		b.set(100)
	}
	if b.tty != nil {
		_ = b.tty.Finish()
	}
}
