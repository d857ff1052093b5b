package statecontext

// Reserved is the only command of NextLevel; it changes nothing but the cas. Only tests of upgrades propose it. The
// first command that really needs a newer level replaces it.
type Reserved struct{}

func (*Reserved) kind() kind               { return kindReserved }
func (*Reserved) append(dst []byte) []byte { return dst }

func (*Reserved) apply(t *tx) *Rejection {
	t.changed = true
	t.emitCluster()
	return nil
}
