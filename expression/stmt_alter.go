package expression

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tidemark/collate"
	"tidemark/index"
)

// The actions of ALTER INDEX.
const (
	ActionMove         = "move"          // to Nodes
	ActionReplicaCount = "replica_count" // sets NumReplica
	ActionDropReplica  = "drop_replica"  // the one with ReplicaID
	ActionSplit        = "split"         // at the values At, into NumPartition slices, or into twice as many
	ActionMerge        = "merge"         // of the slices on both sides of each value of At
	ActionCancelSplit  = "cancel_split"  // of the split or merge in progress
	ActionAutoSplit    = "auto_split"    // sets AutoSplit
)

// alterOptions lists the options of each action; the first one is required if needs is set.
var alterOptions = []struct {
	action  string
	options []string
	needs   bool
	example string
}{
	{ActionMove, []string{"nodes"}, true, `{"action":"move","nodes":["…"]}`},
	{ActionReplicaCount, []string{"num_replica", "nodes"}, true, `{"action":"replica_count","num_replica":n}`},
	{ActionDropReplica, []string{"replicaId"}, true, `{"action":"drop_replica","replicaId":n}`},
	{ActionSplit, []string{"at", "num_partition"}, false, `{"action":"split","at":[…]}`},
	{ActionMerge, []string{"at"}, true, `{"action":"merge","at":[…]}`},
	{ActionCancelSplit, nil, false, `{"action":"cancel_split"}`},
	{ActionAutoSplit, []string{"auto_split"}, true, `{"action":"auto_split","auto_split":false}`},
}

// actions returns the names of the actions.
func actions() (all []string) {
	for _, o := range alterOptions {
		all = append(all, o.action)
	}
	return all
}

// AlterIndex is ALTER INDEX.
type AlterIndex struct {
	Name       string
	Keyspace   index.Keyspace
	Action     string
	Nodes      []string // of ActionMove; of ActionReplicaCount: where new replicas may be placed
	NumReplica *int     // of ActionReplicaCount
	ReplicaID  *int     // of ActionDropReplica
	// At holds the values, as JSON, at which ranges are cut (ActionSplit) or no longer cut (ActionMerge).
	At           []json.RawMessage
	NumPartition *int  // of ActionSplit: the resulting number of slices
	AutoSplit    *bool // of ActionAutoSplit: whether the number of slices is adapted automatically
}

func (*AlterIndex) statement() {}

// String returns the canonical text.
func (s *AlterIndex) String() string {
	b := appendName([]byte("ALTER INDEX "), s.Name)
	b = appendKeyspace(append(b, " ON "...), s.Keyspace)
	b = append(b, ` WITH {"action":`...)
	b = collate.AppendQuoted(b, []byte(s.Action))
	if s.NumReplica != nil {
		b = strconv.AppendInt(append(b, `, "num_replica":`...), int64(*s.NumReplica), 10)
	}
	if s.ReplicaID != nil {
		b = strconv.AppendInt(append(b, `, "replicaId":`...), int64(*s.ReplicaID), 10)
	}
	if s.Nodes != nil {
		b = append(b, `, "nodes":`...)
		for i, n := range s.Nodes {
			b = append(b, "[,"[min(i, 1)])
			b = collate.AppendQuoted(b, []byte(n))
		}
		b = append(b, ']')
	}
	if s.At != nil {
		b = append(b, `, "at":`...)
		for i, v := range s.At {
			b = append(append(b, "[,"[min(i, 1)]), v...)
		}
		b = append(b, ']')
	}
	if s.NumPartition != nil {
		b = strconv.AppendInt(append(b, `, "num_partition":`...), int64(*s.NumPartition), 10)
	}
	if s.AutoSplit != nil {
		b = strconv.AppendBool(append(b, `, "auto_split":`...), *s.AutoSplit)
	}
	return string(append(b, '}'))
}

// alter parses ALTER INDEX name ON bucket WITH {…}.
func (p *parser) alter() (Statement, error) {
	s := &AlterIndex{}
	primary := false
	if err := p.indexWords("ALTER", &primary); err != nil {
		return nil, err
	}
	var err error
	if primary && p.isWord("ON") {
		s.Name = PrimaryName
	} else if s.Keyspace, s.Name, err = p.indexPath(); err != nil {
		return nil, err
	}
	if s.Keyspace.Bucket == "" {
		if s.Keyspace, err = p.onKeyspace(); err != nil {
			return nil, err
		}
	}
	if err := p.usingGSI(); err != nil {
		return nil, err
	}
	if err := p.wantWord("WITH"); err != nil {
		return nil, err
	}
	at := p.tok
	if err := p.optionList(func(key token) error { return p.alterOption(s, key) }); err != nil {
		return nil, err
	}
	return s, p.alterWhole(s, at)
}

func (p *parser) alterAction(s *AlterIndex) error {
	tok := p.tok
	if tok.kind != tokString {
		return p.unexpected("the action in quotes")
	}
	if !slices.Contains(actions(), tok.value) {
		return p.unknown(tok, "action", actions()...)
	}
	s.Action = tok.value
	return p.advance()
}

func (p *parser) alterOption(s *AlterIndex, key token) (err error) {
	all := []string{"action", "nodes", "num_replica", "replicaId", "at", "num_partition", "auto_split"}
	if !slices.Contains(all, key.value) {
		return p.unknown(key, "option", all...)
	}
	if err := p.colon(); err != nil {
		return err
	}
	switch key.value {
	case "action":
		return p.alterAction(s)
	case "nodes":
		s.Nodes, err = p.optionNames()
	case "num_replica":
		s.NumReplica, err = p.optionInt(0, MaxReplicas)
	case "replicaId":
		s.ReplicaID, err = p.optionInt(0, MaxReplicas)
	case "at":
		s.At, err = p.optionValues()
	case "num_partition":
		s.NumPartition, err = p.optionInt(1, maxPartitions)
	case "auto_split":
		s.AutoSplit, err = p.optionBool()
	}
	return err
}

// optionValues parses a list of constants, as in VALUES of a range, or a single constant.
func (p *parser) optionValues() (all []json.RawMessage, err error) {
	list, err := p.acceptOp("[")
	if err != nil {
		return nil, err
	}
	for {
		at := p.tok
		x, err := p.expression(0)
		if err != nil {
			return nil, err
		}
		if len(all) == maxPartitions-1 {
			return nil, p.fail(at, "more than %d values: an index has at most %d slices", maxPartitions-1, maxPartitions)
		}
		_, text, err := constant(x)
		if err != nil {
			return nil, p.fail(at, "the values of at must be constants: %v", err)
		}
		if all = append(all, text); !list {
			return all, nil
		}
		if more, err := p.acceptOp(","); err != nil {
			return nil, err
		} else if !more {
			return all, p.wantOp("]")
		}
	}
}

// actionless returns the error for options without an action.
func (p *parser) actionless(at token) error {
	var examples []string
	for _, o := range alterOptions {
		examples = append(examples, o.example)
	}
	return p.fail(at, "ALTER INDEX needs an action: %s or %s", strings.Join(examples[:len(examples)-1], ", "),
		examples[len(examples)-1])
}

// alterWhole checks that the options belong to the action.
func (p *parser) alterWhole(s *AlterIndex, at token) error {
	if s.Action == "" {
		return p.actionless(at)
	}
	of := alterOptions[slices.Index(actions(), s.Action)]
	for option, given := range s.given() {
		switch {
		case of.needs && option == of.options[0] && !given:
			return p.fail(at, "the action %s needs %s", s.Action, option)
		case given && !slices.Contains(of.options, option):
			return p.fail(at, "%s is an option of %s, not of %s", option, actionsWith(option), s.Action)
		}
	}
	if s.Action == ActionSplit && s.At != nil && s.NumPartition != nil {
		return p.fail(at, "the action split takes at or num_partition, not both: the values determine the number of slices")
	}
	return nil
}

// given iterates over the options except the action, in the order in which they are checked, with whether each was
// given.
func (s *AlterIndex) given() func(func(string, bool) bool) {
	return func(yield func(string, bool) bool) {
		_ = yield("nodes", s.Nodes != nil) && yield("num_replica", s.NumReplica != nil) &&
			yield("replicaId", s.ReplicaID != nil) && yield("at", s.At != nil) &&
			yield("num_partition", s.NumPartition != nil) && yield("auto_split", s.AutoSplit != nil)
	}
}

// actionsWith returns text that names the actions that take an option.
func actionsWith(option string) string {
	var all []string
	for _, o := range alterOptions {
		if slices.Contains(o.options, option) {
			all = append(all, o.action)
		}
	}
	if len(all) == 1 {
		return "the action " + all[0]
	}
	return fmt.Sprintf("the actions %s and %s", strings.Join(all[:len(all)-1], ", "), all[len(all)-1])
}
