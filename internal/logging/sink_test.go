package logging

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSinkWithoutAReader checks that a writer to an unread pipe does not block. A reader that continues gets whole
// lines in order, and the number of missing ones at their place.
func TestSinkWithoutAReader(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		s := NewSink(w)
		s.Detach(asJSON)
		const lines = 3000
		text := strings.Repeat("x", 1000)
		for i := range lines {
			if n, err := fmt.Fprintf(s, "%06d %s\n", i, text); n != 1008 || err != nil {
				t.Fatal(n, err)
			}
		}
		if s.Flush(time.Millisecond) {
			t.Fatal("all was forwarded without a reader")
		}
		read := make(chan []byte, 1)
		go func() {
			b, _ := io.ReadAll(r) // what came
			read <- b
		}()
		if !s.Flush(time.Minute) {
			t.Fatal("the reader is back, and nothing comes")
		}
		_, _ = fmt.Fprintln(s, "last")
		_ = w.Close()
		got := strings.Split(strings.TrimSuffix(string(<-read), "\n"), "\n")
		next, lost := 0, -1
		for _, l := range got[:len(got)-1] {
			if strings.Contains(l, "missing here") {
				_, number, _ := strings.Cut(l, map[bool]string{false: "lost=", true: `"lost":`}[asJSON])
				if _, err := fmt.Sscanf(number, "%d", &lost); err != nil || next+lost != lines {
					t.Fatalf("%q after %d of %d lines: %v", l, next, lines, err)
				}
				continue
			}
			if want := fmt.Sprintf("%06d %s", next, text); l != want || lost >= 0 {
				t.Fatalf("line %d is %.20s…", next, l)
			}
			next++
		}
		if lost < lines/2 || got[len(got)-1] != "last" || next < maxWaiting/2000 {
			t.Errorf("%d lines came, %d lost, at the end %.20s…", next, lost, got[len(got)-1])
		}
	}
}

// TestSinkWithAReader checks that data is forwarded when Write returns, detached or not, and that Write returns the
// underlying writer's error only before Detach.
func TestSinkWithAReader(t *testing.T) {
	var b bytes.Buffer
	s := NewSink(&b)
	if s.Under() != &b {
		t.Error("another writer below")
	}
	for i, want := range []string{"a\n", "a\nb\n", "a\nb\nc\n"} {
		_, _ = fmt.Fprintf(s, "%c\n", 'a'+i)
		if !s.Flush(time.Minute) || b.String() != want {
			t.Errorf("%q, want %q", b.String(), want)
		}
		s.Detach(false)
	}
	bad := NewSink(broken{})
	if _, err := bad.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	bad.Detach(false)
	if n, err := bad.Write([]byte("x")); n != 1 || err != nil {
		t.Error(n, err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestSinkTogether checks that concurrent writers lose nothing while the reader reads.
func TestSinkTogether(t *testing.T) {
	var b bytes.Buffer
	s := NewSink(&b)
	s.Detach(false)
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			for range 500 {
				_, _ = s.Write([]byte("line\n"))
			}
		})
	}
	g.Wait()
	if !s.Flush(time.Minute) || b.String() != strings.Repeat("line\n", 4000) {
		t.Errorf("%d bytes", b.Len())
	}
}
