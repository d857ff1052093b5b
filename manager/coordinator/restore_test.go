package coordinator

import (
	"bytes"
	"errors"
	"testing"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/statecontext"
)

// TestARestoreIsOfItsBackup: a restore that is sent again has its outcome; another one under its key is refused, and
// not told as done.
func TestARestoreIsOfItsBackup(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		backup := func() *statecontext.Backup {
			var file bytes.Buffer
			if err := statecontext.WriteBackup(&file, w.log.State(), w.leader().cfg.Now().UnixMilli(), "test"); err != nil {
				t.Fatal(err)
			}
			b, err := statecontext.ReadBackup(file.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		first := backup()
		if _, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "a", Bucket: "world",
			IsPrimary: true, Deferred: true}}); err != nil {
			t.Fatal(err)
		}
		second := backup()
		for i, b := range []*statecontext.Backup{first, first, second} {
			o, err := w.leader().Restore(w.ctx, RestoreRequest{ID: "k", Backup: b, Mode: statecontext.RestoreInPlace})
			switch {
			case b == second && !errors.Is(err, errcode.RequestMismatch):
				t.Errorf("another backup under the key: %+v, %v", o, err)
			case b == first && (err != nil || o.Replayed != (i == 1)):
				t.Errorf("restore %d: %+v, %v", i, o, err)
			}
		}
		if o, err := w.leader().Restore(w.ctx, RestoreRequest{ID: "k2", Backup: second,
			Mode: statecontext.RestoreInPlace}); err != nil || w.log.State().IndexByName("world", "a") == nil {
			t.Errorf("under a key of its own: %+v, %v", o, err)
		}
	})
}
