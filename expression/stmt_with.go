package expression

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// option is one key of WITH.
type option struct {
	key  string
	read func(p *parser, w *With) error
}

// options returns the options of WITH, in the order in which they are printed.
func options() []option {
	return []option{
		{"defer_build", func(p *parser, w *With) (err error) { w.DeferBuild, err = p.optionBool(); return err }},
		{"num_replica", func(p *parser, w *With) (err error) { w.NumReplica, err = p.optionInt(0, MaxReplicas); return err }},
		{"num_partition", func(p *parser, w *With) (err error) {
			w.NumPartition,
				err = p.optionInt(1, maxPartitions)
			return err
		}},
		{"num_slice", func(p *parser, w *With) (err error) { w.NumSlice, err = p.optionInt(1, maxPartitions); return err }},
		{"nodes", func(p *parser, w *With) (err error) { w.Nodes, err = p.optionNames(); return err }},
		{"auto_split", func(p *parser, w *With) (err error) { w.AutoSplit, err = p.optionBool(); return err }},
	}
}

// hints are options of Couchbase that state expected sizes of keys and documents. They have no effect.
var hints = []string{"secKeySize", "docKeySize", "arrSize", "numDoc", "residentRatio"}

// with parses {"key": value, …}.
func (p *parser) with(w *With) error {
	at := p.tok
	if err := p.optionList(func(key token) error { return p.withOption(w, key) }); err != nil {
		return err
	}
	if w.NumPartition != nil && w.NumSlice != nil && *w.NumPartition != *w.NumSlice {
		return p.fail(at, "num_partition is %d and num_slice is %d; they mean the same: give only one",
			*w.NumPartition, *w.NumSlice)
	}
	return nil
}

// optionList parses {"key": value, …}; read is called before each value.
func (p *parser) optionList(read func(key token) error) error {
	if err := p.wantOp("{"); err != nil {
		return err
	}
	if ok, err := p.acceptOp("}"); ok || err != nil {
		return err
	}
	seen := map[string]bool{}
	err := p.separated(func() error {
		key := p.tok
		if key.kind != tokString {
			return p.unexpected("the name of an option in quotes")
		}
		if seen[key.value] {
			return p.fail(key, "the option %q is given twice", key.value)
		}
		seen[key.value] = true
		return read(key)
	})
	if err != nil {
		return err
	}
	return p.wantOp("}")
}

// colon consumes an option's name and the colon.
func (p *parser) colon() error {
	if err := p.advance(); err != nil {
		return err
	}
	return p.wantOp(":")
}

func (p *parser) withOption(w *With, key token) error {
	var known []string
	for _, o := range options() {
		known = append(known, o.key)
		if o.key != key.value {
			continue
		}
		if err := p.colon(); err != nil {
			return err
		}
		return o.read(p, w)
	}
	if slices.Contains(hints, key.value) {
		if err := p.colon(); err != nil {
			return err
		}
		w.Ignored = append(w.Ignored, key.value)
		_, err := p.optionInt(0, math.MaxInt32)
		return err
	}
	if key.value == "retain_deleted_xattr" {
		return p.unsupported(key, "retain_deleted_xattr is not supported: a deleted document has no entries; "+
			"leave it out")
	}
	return p.unknown(key, "option", known...)
}

// optionBool parses true or false, bare or as a string.
func (p *parser) optionBool() (*bool, error) {
	if p.tok.kind == tokWord || p.tok.kind == tokString {
		for _, v := range []bool{false, true} {
			if strings.EqualFold(p.tok.value, strconv.FormatBool(v)) {
				return &v, p.advance()
			}
		}
	}
	return nil, p.unexpected("true or false")
}

// optionInt parses an integer, bare or as a string.
func (p *parser) optionInt(low, high int) (*int, error) {
	tok := p.tok
	negative := p.isOp("-")
	if negative {
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
	if p.tok.kind != tokNumber && (p.tok.kind != tokString || negative) {
		return nil, p.unexpected("an integer from " + strconv.Itoa(low) + " to " + strconv.Itoa(high))
	}
	n, err := strconv.Atoi(p.tok.value)
	if negative {
		n = -n
	}
	if err != nil || n < low || n > high {
		return nil, p.fail(tok, "%s is not an integer from %d to "+
			"%d", p.lex.text[tok.pos:min(p.tok.end, tok.pos+maxShown)], low,
			high)
	}
	return &n, p.advance()
}

// optionNames parses a list of strings, or one string.
func (p *parser) optionNames() ([]string, error) {
	if p.tok.kind == tokString {
		name, err := p.nodeName()
		return []string{name}, err
	}
	if err := p.wantOp("["); err != nil {
		return nil, err
	}
	var all []string
	for {
		if len(all) == MaxNodes {
			return nil, p.fail(p.tok, "more than %d nodes", MaxNodes)
		}
		name, err := p.nodeName()
		if err != nil {
			return nil, err
		}
		all = append(all, name)
		if more, err := p.acceptOp(","); err != nil {
			return nil, err
		} else if !more {
			return all, p.wantOp("]")
		}
	}
}

func (p *parser) nodeName() (string, error) {
	tok := p.tok
	switch {
	case tok.kind != tokString:
		return "", p.unexpected("the name of a node in quotes")
	case tok.value == "" || len(tok.value) > MaxNodeNameBytes:
		return "", p.fail(tok, "the name of a node has 1 to %d bytes", MaxNodeNameBytes)
	}
	return tok.value, p.advance()
}
