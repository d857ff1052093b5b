//go:build invariants

package statecontext

// assertInvariants verifies the state after every entry.
func assertInvariants(before, after *State) error {
	if err := checkStep(before, after); err != nil {
		return err
	}
	return Check(after)
}
