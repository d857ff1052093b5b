package indexer

import (
	"os"
	"path/filepath"
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
