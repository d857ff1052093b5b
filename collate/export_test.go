package collate

// KindOf is exported for tests of the order of kinds.
func KindOf(key []byte, desc bool) Kind { return kindOf(key, desc) }
