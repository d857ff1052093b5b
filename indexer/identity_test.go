package indexer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemark/wire"
)

// TestIdentityIsReadableWhileItIsStored checks that while storing a new leader hangs, everybody else sees the leader
// from before, and the new leader is not obeyed yet.
func TestIdentityIsReadableWhileItIsStored(t *testing.T) {
	begun, ends := make(chan struct{}, 1), make(chan struct{})
	hangs := false
	id, err := loadIdentity(t.TempDir(), "boot", func(store func() error) error {
		if hangs {
			begun <- struct{}{}
			<-ends
		}
		return store()
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := id.registered(&wire.RegisterReply{ClusterID: "c", Node: 3}); err != nil {
		t.Fatal(err)
	}
	hangs = true
	admitted := make(chan error, 1)
	go func() { admitted <- id.admit(wire.Fence{ClusterID: "c", Epoch: 1, Term: 9}) }()
	<-begun
	read := make(chan identityState, 1)
	go func() { read <- id.get() }()
	select {
	case st := <-read:
		if st.Node != 3 || st.Fence.Term != 0 {
			t.Errorf("while it is stored: %+v", st)
		}
	case <-time.After(time.Minute):
		t.Error("it cannot be read")
	}
	close(ends)
	if err := <-admitted; err != nil || id.get().Fence.Term != 9 {
		t.Errorf("when it is stored: %v, %+v", err, id.get())
	}
	hangs = false
	again, err := loadIdentity(id.dir, id.boot, id.watched)
	if err != nil || again.get().Fence.Term != 9 || again.get().Node != 3 {
		t.Errorf("after a restart: %v, %+v", err, again.get())
	}
}

// TestDamagedIdentity checks that an indexer with a damaged identity does not start as a new one, which would leave its
// slices without an owner, and says what to do.
func TestDamagedIdentity(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, identityFile)
	for _, content := range []string{"", `{"format":1,"uu`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := loadIdentity(dir, "boot", func(store func() error) error { return store() })
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "move "+dir+" away") {
			t.Errorf("%q: %v", content, err)
		}
		if b, _ := os.ReadFile(path); string(b) != content {
			t.Errorf("%q was replaced by %q", content, b)
		}
	}
}

// TestDataFolderIsReadableByTheOwnerOnly checks that only its owner can read the data folder: it contains the keys of
// documents.
func TestDataFolderIsReadableByTheOwnerOnly(t *testing.T) {
	w := newWorld(t)
	w.dir = filepath.Join(w.dir, "new")
	w.start()
	info, err := os.Stat(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Error(info.Mode())
	}
}
