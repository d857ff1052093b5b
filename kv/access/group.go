package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of groups.
const (
	// MaxGroups bounds the groups of a cluster, MaxGroupsOfUser those of one user.
	MaxGroups       = 256
	MaxGroupsOfUser = 32
)

// Group is a group of users as it is stored: its users have its roles in addition to their own.
type Group struct {
	ID string `json:"id"`
	// Description is free text for people.
	Description string `json:"description,omitempty"`
	Roles       []Role `json:"roles"`
}

// Check reports why a group is invalid. Error: ErrAccess.
func (g *Group) Check() error {
	if err := checkName("group", g.ID); err != nil {
		return err
	}
	if utf8.RuneCountInString(g.Description) > MaxName || !utf8.ValidString(g.Description) ||
		strings.ContainsFunc(g.Description, unicode.IsControl) {
		return fmt.Errorf("%w: group %q: the description must have at most %d characters, and no control characters",
			ErrAccess, g.ID, MaxName)
	}
	return checkRoles("group", g.ID, g.Roles)
}

// CheckGroups refuses an invalid list of groups: they must be ordered by name, without duplicates. Error: ErrAccess.
func CheckGroups(groups []Group) error {
	if len(groups) > MaxGroups {
		return fmt.Errorf("%w: %d groups; the limit is %d", ErrAccess, len(groups), MaxGroups)
	}
	for i := range groups {
		if err := groups[i].Check(); err != nil {
			return err
		}
		if i > 0 && groups[i-1].ID >= groups[i].ID {
			return fmt.Errorf("%w: group %q is listed twice, or out of order", ErrAccess, groups[i].ID)
		}
	}
	return nil
}

// PlaceGroup returns the index at which a group is, or would be inserted, in ordered groups, and whether it is there.
func PlaceGroup(groups []Group, id string) (int, bool) {
	return slices.BinarySearchFunc(groups, id, func(g Group, id string) int { return cmp.Compare(g.ID, id) })
}

// ParseGroups parses a comma-separated list of names and returns them in order, without duplicates.
func ParseGroups(text string) []string {
	out := []string{}
	for part := range strings.SplitSeq(text, ",") {
		if name := strings.TrimSpace(part); name != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Groups returns the groups; the caller must not modify the result.
func (d *Directory) Groups() []Group { return d.kept.Groups }

// Group returns the group of that name; nil if there is none.
func (d *Directory) Group(id string) *Group {
	at, ok := PlaceGroup(d.kept.Groups, id)
	if !ok {
		return nil
	}
	return &d.kept.Groups[at]
}

// rolesOf returns the roles of a user and of its groups.
func (d *Directory) rolesOf(u *User) []Role {
	out := u.Roles
	for _, id := range u.Groups {
		if g := d.Group(id); g != nil {
			out = append(slices.Clip(out), g.Roles...)
		}
	}
	return out
}
