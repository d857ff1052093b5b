// Package config sets flags from, in this order, the command line, the environment (TIDEMARK_…), a YAML file and the
// defaults, and records the source of each value.
//
// An unknown key in the file, or an invalid value, is an error that names the key, its source and the key that was
// probably meant. Settings never shows a secret.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// FileFlag is the name of the flag with the YAML file's path.
const FileFlag = "config"

// maxFile is the maximum size of a configuration file in bytes.
const maxFile = 1 << 20

// Redacted is shown instead of a secret.
const Redacted = "(secret)"

// Origins maps each flag to the source of its value: "flag", "env TIDEMARK_X", "file PATH" or "default".
type Origins map[string]string

// Source describes the sources of values besides the command line.
type Source struct {
	Lookup func(string) (string, bool) // os.LookupEnv except in tests
	Role   string                      // the role whose section of the file applies; "" for none
	// OnlySection ignores the keys at the top of the file, which belong to another process: they are not even
	// checked.
	OnlySection bool
	// Sections lists the keys of each role, so that other roles' sections of a shared file are checked, too.
	Sections map[string][]string
}

// Resolve sets the flags that the command line has not set.
func Resolve(flags *pflag.FlagSet, from Source) (Origins, error) {
	origins := Origins{}
	flags.VisitAll(func(f *pflag.Flag) {
		origins[f.Name] = "default"
		if f.Changed {
			origins[f.Name] = "flag"
		}
	})
	if err := fromEnv(flags, from.Lookup, origins); err != nil {
		return nil, err
	}
	if f := flags.Lookup(FileFlag); f != nil && f.Value.String() != "" {
		if err := from.file(flags, f.Value.String(), origins); err != nil {
			return nil, err
		}
	}
	return origins, nil
}

// EnvName returns the environment variable of a flag: log-level → TIDEMARK_LOG_LEVEL.
func EnvName(flag string) string {
	return "TIDEMARK_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func fromEnv(flags *pflag.FlagSet, lookup func(string) (string, bool), origins Origins) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		v, ok := lookup(EnvName(f.Name))
		if !ok || f.Changed || err != nil || f.Name == "help" {
			return
		}
		if e := flags.Set(f.Name, v); e != nil {
			err = fmt.Errorf("environment %s: %w", EnvName(f.Name), hide(f.Name, inWords(e)))
			return
		}
		origins[f.Name] = "env " + EnvName(f.Name)
	})
	return err
}

// hide removes the value of a secret from an error.
func hide(flag string, err error) error {
	if Secret(flag) {
		return errors.New("the value is invalid")
	}
	return err
}

// file applies the keys at the top level, which are flag names, and the role's own section, which takes precedence. A
// section is a key named after the role, with keys below it.
func (from Source) file(flags *pflag.FlagSet, path string, origins Origins) error {
	values, err := readFile(path)
	if err != nil {
		return err
	}
	top, sections, mine := map[string]any{}, map[string]map[string]any{}, known(flags)
	for key, value := range values {
		section, isSection := value.(map[string]any)
		if !isSection {
			top[key] = value
			continue
		}
		keys, ok := from.Sections[key]
		if !ok {
			return fmt.Errorf("configuration file %s: unknown section %q%s", path, key,
				suggest(key, slices.Sorted(maps.Keys(from.Sections)), "sections"))
		}
		if key == from.Role {
			keys = mine
		}
		if err := check(path, key+": ", section, keys); err != nil {
			return err
		}
		sections[key] = section
	}
	if from.OnlySection {
		top = nil
	}
	if err := check(path, "", top, mine); err != nil {
		return err
	}
	for _, layer := range []map[string]any{sections[from.Role], top} {
		if err := apply(flags, path, layer, origins); err != nil {
			return err
		}
	}
	return nil
}

func readFile(path string) (map[string]any, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("configuration file %s: more than %d bytes", path, maxFile)
	}
	values, dec := map[string]any{}, yaml.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&values); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("configuration file %s: %w", path, err)
	}
	if err := dec.Decode(new(any)); err == nil {
		return nil, fmt.Errorf("configuration file %s: it contains several documents (---), want one", path)
	}
	return values, nil
}

// check refuses unknown keys.
func check(path, section string, values map[string]any, keys []string) error {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(keys, key) {
			return fmt.Errorf("configuration file %s: %sunknown key %q%s", path, section, key, suggest(key, keys, "keys"))
		}
	}
	return nil
}

// apply sets the flags that have no value yet.
func apply(flags *pflag.FlagSet, path string, values map[string]any, origins Origins) error {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if origins[key] != "default" {
			continue
		}
		if err := flags.Set(key, text(values[key])); err != nil {
			return fmt.Errorf("configuration file %s: key %q: %w", path, key, hide(key, inWords(err)))
		}
		origins[key] = "file " + path
	}
	return nil
}

// text formats a YAML value as the command line would take it.
func text(v any) string {
	list, ok := v.([]any)
	if !ok {
		if v == nil {
			return ""
		}
		return fmt.Sprint(v)
	}
	parts := make([]string, len(list))
	for i, e := range list {
		parts[i] = fmt.Sprint(e)
	}
	return strings.Join(parts, ",")
}

func known(flags *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if Key(f) {
			names = append(names, f.Name)
		}
	})
	return names
}

// Key reports whether a flag can be set by a file.
func Key(f *pflag.Flag) bool { return f.Name != FileFlag && f.Name != "help" }

// Secret reports whether a flag's value must never be shown. The name of a file with a secret may be shown.
func Secret(flag string) bool {
	for _, word := range []string{"password", "token", "secret"} {
		if flag == word || strings.HasSuffix(flag, "-"+word) {
			return true
		}
	}
	return false
}

// Setting is a flag with its value and the value's source.
type Setting struct {
	Key    string `json:"key"`    // in the YAML file; also the flag's name
	Value  string `json:"value"`  // Redacted if it is a secret that is set
	Origin string `json:"origin"` // flag, env NAME, file PATH, default
	Env    string `json:"env"`
	Usage  string `json:"usage"`
}

// Settings lists the flags ordered by name, without those named in skip.
func Settings(flags *pflag.FlagSet, origins Origins, skip ...string) (all []Setting) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden || slices.Contains(skip, f.Name) {
			return
		}
		s := Setting{Key: f.Name, Value: Text(f.Value), Origin: origins[f.Name], Env: EnvName(f.Name), Usage: f.Usage}
		if Secret(f.Name) && s.Value != "" {
			s.Value = Redacted
		}
		all = append(all, s)
	})
	return all
}

// Text formats a flag's value as the command line takes it: lists with commas and no brackets.
func Text(v pflag.Value) string {
	if list, ok := v.(pflag.SliceValue); ok {
		return strings.Join(list.GetSlice(), ",")
	}
	return v.String()
}
