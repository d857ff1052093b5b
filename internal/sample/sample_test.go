package sample

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestTheSampleIsWhole(t *testing.T) {
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

func TestErrorsNameTheLine(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"{\"key\":\"a\",\"value\":1}\n\n{\"key\":", "line 3"},
		{`{"value":1}`, "want {\"key\""},
		{`{"key":"a"}`, "want {\"key\""},
	} {
		r := NewReader(strings.NewReader(c.in))
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if errors.Is(err, io.EOF) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.in, err)
		}
	}
}
