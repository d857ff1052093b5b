package scanport

import (
	"errors"
	"strings"
	"testing"

	"tidemark/collate"
)

func TestRequests(t *testing.T) {
	want := Request{Op: Scan, Index: "5", Parent: "00-a-b-01", Resume: []byte("a b\n{"),
		Body: []byte(`{"limit":1}`)}
	got, err := ParseRequest(AppendRequest(nil, want))
	if err != nil || got.Op != want.Op || got.Index != want.Index || got.RequestID != "" || got.Parent != want.Parent ||
		string(got.Resume) != string(want.Resume) || string(got.Body) != string(want.Body) {
		t.Errorf("%+v %v", got, err)
	}
	for _, bad := range []string{"", "scan 5 - -", "scan 5 -\n{}", "drop 5 - - 0\n{}",
		"scan " + strings.Repeat("5", 2000) + " - - 0\n", "scan 5 - - 3\n{}", "scan 5 - - -1\n{}", "scan 5 - -\n{}",
		"count 5 - - 1\n {}", "scan 5 - - 1000000\n" + strings.Repeat(" ", 1_000_000)} {
		if _, err := ParseRequest([]byte(bad)); !errors.Is(err, ErrMessage) {
			t.Errorf("%.40q: %v", bad, err)
		}
	}
}

func message(t testing.TB) []byte {
	t.Helper()
	desc := []bool{false, true}
	key, err := collate.AppendComposite(nil, [][]byte{[]byte(`"FR"`), []byte(`12`)}, desc)
	if err != nil {
		t.Fatal(err)
	}
	m := AppendHead(nil, desc)
	head := len(m)
	m = AppendRow(AppendRow(m, key, []byte("a")), key, []byte("b"))
	return Finish(m, head, End, []byte(`{"end":true}`))
}

func TestAnswers(t *testing.T) {
	m := message(t)
	var a Answer
	if err := a.Read(m); err != nil || a.Tail != End || string(a.Text) != `{"end":true}` {
		t.Fatalf("%+v %v", a, err)
	}
	for _, want := range []string{"a", "b"} {
		key, id, ok, err := a.Next()
		if err != nil || !ok || id != want || len(key) != 2 || string(key[0]) != `"FR"` || string(key[1]) != "12" {
			t.Errorf("%s %q %v %v", key, id, ok, err)
		}
	}
	if _, _, ok, err := a.Next(); ok || err != nil || !a.Empty() {
		t.Errorf("a third row: %v %v", ok, err)
	}
	rows := len(m) - len(`{"end":true}`)
	for n := range rows { // cut before its tail, it is no message
		if err := a.Read(m[:n]); !errors.Is(err, ErrMessage) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(message(f))
	f.Add([]byte{0, 0, 0, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, m []byte) {
		var a Answer
		if a.Read(m) != nil {
			return
		}
		for {
			if _, _, ok, err := a.Next(); !ok || err != nil {
				return
			}
		}
	})
}
