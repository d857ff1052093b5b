package statecontext

// Reserved is the one command of NextLevel, and changes nothing but the cas. No program proposes it but tests of
// upgrades: the first kind that really needs a newer level takes its place there.
type Reserved struct{}

func (*Reserved) kind() kind               { return kindReserved }
func (*Reserved) append(dst []byte) []byte { return dst }

func (*Reserved) apply(t *tx) *Rejection {
	t.changed = true
	t.emitCluster()
	return nil
}
