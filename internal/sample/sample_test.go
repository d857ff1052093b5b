package sample

import (
	"errors"
	"io"
	"testing"
)

func TestSampleIsComplete(t *testing.T) {
	r, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for {
		d, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		keys[d.Key] = true
	}
	if len(keys) != Documents {
		t.Errorf("%d documents, want %d", len(keys), Documents)
	}
}
