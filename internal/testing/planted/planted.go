// Package planted plants bugs in the product from outside: the product's own code contains no switch for them.
//
// The files in rules name rules of the protocol and, for each, the places of the product that keep it: the original
// lines, and their replacement in a program in which the rule can be switched off. Build builds such a program of a
// package's tests with go test -overlay; the files of the tree stay as they are. A place that is missing or ambiguous
// is an error, so a change of such a line needs a change of the patch.
package planted

import (
	"bufio"
	"embed"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

//go:embed rules
var rulesFS embed.FS

// off holds the rules that are switched off. The set is global to the process, so only one run may use it at a time.
var off = map[string]bool{}

// Off reports whether a rule is switched off. Only patched lines call it.
func Off(rule string) bool { return off[rule] }

// Switch switches the given rules off and all others on. It returns an error for a rule that does not exist, and for
// any rule if the program was built without the patches.
func Switch(rules ...string) error {
	if len(rules) == 0 && len(off) == 0 {
		return nil
	}
	known, next := Rules(), map[string]bool{}
	for _, r := range rules {
		if _, ok := known[r]; !ok {
			return fmt.Errorf("no rule %q", r)
		}
		next[r] = true
	}
	if !Built {
		return fmt.Errorf("this program keeps %s: it was built without package planted's patches", strings.Join(rules, ", "))
	}
	off = next
	return nil
}

// Rules returns the description of each rule, by name.
func Rules() map[string]string {
	rules := map[string]string{}
	for _, p := range patches() {
		rules[p.rule] = p.says
	}
	return rules
}

// patch is one place of the product that keeps a rule.
type patch struct {
	rule, says string
	file       string // path relative to the module
	old, new   []string
	at         string // file and line of the patch, for errors
}

// patches reads the files in rules. It panics at a malformed line.
func patches() []patch {
	entries, err := rulesFS.ReadDir("rules")
	if err != nil {
		panic(err)
	}
	var all []patch
	for _, e := range entries {
		text, err := rulesFS.ReadFile("rules/" + e.Name())
		if err != nil {
			panic(err)
		}
		all = append(all, parse("rules/"+e.Name(), string(text))...)
	}
	return all
}

// parse reads lines "rule NAME: WHAT" and "in FILE", and for each place its original lines with a minus, followed by
// the replacement lines with a plus. Other lines must be empty or begin with #.
func parse(name, text string) []patch {
	var all []patch
	var now patch
	flush := func() {
		if len(now.old) > 0 {
			all = append(all, now)
		}
		now.old, now.new = nil, nil
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		switch rest := strings.TrimPrefix(line, "rule "); {
		case rest != line:
			flush()
			now.rule, now.says, _ = strings.Cut(rest, ": ")
		case strings.HasPrefix(line, "in "):
			flush()
			now.file = strings.TrimPrefix(line, "in ")
		case strings.HasPrefix(line, "-"):
			if len(now.new) > 0 {
				flush()
			}
			if len(now.old) == 0 {
				now.at = fmt.Sprintf("%s:%d", name, n)
			}
			now.old = append(now.old, line[1:])
		case strings.HasPrefix(line, "+") && len(now.old) > 0:
			now.new = append(now.new, line[1:])
		case line == "" || strings.HasPrefix(line, "#"):
			flush()
		default:
			panic(fmt.Sprintf("%s:%d: cannot read %q", name, n, line))
		}
	}
	flush()
	return all
}

// apply returns a file's text with all its patches. Leading and trailing space of lines is ignored in comparisons.
func apply(file, text string, all []patch) (string, error) {
	lines := strings.Split(text, "\n")
	bare := make([]string, len(lines))
	for i, l := range lines {
		bare[i] = strings.TrimSpace(l)
	}
	for _, p := range all {
		at, err := p.find(bare)
		if err != nil {
			return "", fmt.Errorf("%s: rule %s no longer applies to %s: %w:\n%s", p.at, p.rule, file, err,
				strings.Join(p.old, "\n"))
		}
		for i := range p.old {
			lines[at+i], bare[at+i] = "", "\x00" // no other patch can match this line; line numbers stay
		}
		lines[at] = strings.Join(p.new, "\n")
	}
	out := strings.Join(lines, "\n")
	name := "package " + packageOf(lines)
	return strings.Replace(out, name, name+`; import "tidemark/internal/testing/planted"`, 1), nil
}

func (p *patch) find(bare []string) (int, error) {
	found := -1
	for i := range len(bare) - len(p.old) + 1 {
		same := slices.EqualFunc(bare[i:i+len(p.old)], p.old, func(b, o string) bool { return b == strings.TrimSpace(o) })
		if same && found >= 0 {
			return 0, fmt.Errorf("lines %d and %d are these", found+1, i+1)
		}
		if same {
			found = i
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("these lines are not there")
	}
	return found, nil
}

func packageOf(lines []string) string {
	for _, l := range lines {
		if name, ok := strings.CutPrefix(l, "package "); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

// byFile returns the patches of each file.
func byFile() map[string][]patch {
	files := map[string][]patch{}
	for _, p := range patches() {
		files[p.file] = append(files[p.file], p)
	}
	return files
}

// Names returns the names of all rules in ascending order.
func Names() []string { return slices.Sorted(maps.Keys(Rules())) }

// In returns, in ascending order, the names of the rules with a place in files of a folder.
func In(folder string) []string {
	rules := map[string]bool{}
	for _, p := range patches() {
		if path.Dir(p.file) == folder {
			rules[p.rule] = true
		}
	}
	return slices.Sorted(maps.Keys(rules))
}
