package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// noCSV refuses csv where things of several kinds come one after the other.
func noCSV(as format) error {
	if as == formatCSV {
		return usage("--output csv is for lists and scans: want table, json, jsonl or yaml here")
	}
	return nil
}

// writeCSV writes a line of names and one for each item: the members of its JSON, in their order.
func writeCSV[T any](w io.Writer, items []T) error {
	var names []string
	rows := make([]map[string]json.RawMessage, len(items))
	for i, item := range items {
		text, err := json.Marshal(item)
		if err != nil {
			return err
		}
		if len(text) == 0 || text[0] != '{' {
			return fmt.Errorf("%s is no list of objects, which csv is for", text)
		}
		if err := json.Unmarshal(text, &rows[i]); err != nil {
			return err
		}
		order, err := memberNames(text)
		if err != nil {
			return err
		}
		for _, name := range order {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	out := csv.NewWriter(w)
	if err := out.Write(names); err != nil {
		return err
	}
	for _, row := range rows {
		fields := make([]string, len(names))
		for i, name := range names {
			var err error
			if fields[i], err = csvField(row[name]); err != nil {
				return err
			}
		}
		if err := out.Write(fields); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// memberNames are those of an object's members, in their order.
func memberNames(object []byte) (names []string, err error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		names = append(names, fmt.Sprint(name))
	}
	return names, nil
}

// csvField is a value as csv has it: a string without quotes, nothing for null and for what is missing, else JSON.
func csvField(value json.RawMessage) (string, error) {
	switch {
	case len(value) == 0 || string(value) == "null":
		return "", nil
	case value[0] != '"':
		return string(value), nil
	}
	var text string
	err := json.Unmarshal(value, &text)
	return text, err
}
