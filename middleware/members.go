package middleware

import (
	"encoding/json"
	"maps"

	"github.com/golang-jwt/jwt/v5"
)

// nested are the names of the members of header and claims that are objects or
// arrays. The others need no copy, as nobody can alter them.
type nested struct{ header, claims []string }

func nestedIn(header, claims map[string]any) *nested {
	n := nested{namesOfNested(header), namesOfNested(claims)}
	if n.header == nil && n.claims == nil {
		return nil
	}
	return &n
}

func namesOfNested(members map[string]any) (names []string) {
	for name, member := range members {
		switch member.(type) {
		case map[string]any, []any:
			names = append(names, name)
		}
	}
	return names
}

func (n *nested) copyHeader(header map[string]any) map[string]any {
	header = maps.Clone(header)
	if n != nil {
		deepen(header, n.header)
	}
	return header
}

func (n *nested) copyClaims(claims jwt.MapClaims) jwt.MapClaims {
	claims = maps.Clone(claims)
	if n != nil {
		deepen(claims, n.claims)
	}
	return claims
}

// deepen replaces the named members by copies.
func deepen(members map[string]any, names []string) {
	for _, name := range names {
		members[name] = copyJSON(members[name])
	}
}

func copyJSON(value any) any {
	switch value := value.(type) {
	case map[string]any:
		members := maps.Clone(value)
		for name, member := range members {
			members[name] = copyJSON(member)
		}
		return members
	case []any:
		array := make([]any, len(value))
		for i, element := range value {
			array[i] = copyJSON(element)
		}
		return array
	}
	return value
}

// maxGrowth is how many times its text a remembered token may take.
const maxGrowth = 16

// What things take on a 64-bit machine, with what the allocator adds.
const (
	entrySize  = 400 // a verifiedToken, its place in the cache and the cache's own tables
	smallMap   = 336 // of 8 members at most
	memberSize = 48  // of a larger map, of which at most 7/8 are in use, and 7/16 at least
	boxSize    = 16  // the smallest piece of memory that holds others in place
)

func sizeOfMembers(members map[string]any) int {
	size := smallMap
	if n := len(members); n > 8 {
		size += memberSize * 16 / 7 * n
	}
	for name, member := range members {
		size += sizeOfText(name) + sizeOf(member)
	}
	return size
}

// sizeOf returns about what a value takes beside the interface that it is in.
func sizeOf(value any) int {
	switch value := value.(type) {
	case string:
		return boxSize + sizeOfText(value)
	case json.Number:
		return boxSize + sizeOfText(string(value))
	case float64:
		return boxSize
	case []any:
		size := 2*boxSize + boxSize*cap(value)
		for _, element := range value {
			size += sizeOf(element)
		}
		return size
	case map[string]any:
		return sizeOfMembers(value)
	}
	return 0
}

func sizeOfText(text string) int { return (len(text) + boxSize - 1) &^ (boxSize - 1) }
