/* Runs scan() on changed copies of a text, each in memory of just the size that it asks for: compile it with
 * the sanitizers. Arguments: the file, a seed, how many copies. Prints how many of them were taken whole. Exit status 1: a result is out of range.
 *
 * Half of the copies are only edited: other values, more members, another layout, all of it what scan() takes. So
 * its deep paths are reached. The others are damaged anywhere.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scan.c"
#include "fields.h"      /* FIELDS: those that native.py asks for */

static uint64_t state;

static uint64_t below(uint64_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return limit ? (state >> 33) % limit : 0;
}

static const char *const PIECES[] = {
    "\"", "\\", "{", "}", "[", "]", ",", ":", "\\u", "\\ud83d", "\\ude00", "null", "NaN", "-", "1e", ".", "0",
    "\"args\":", "\"ts\":", "\"ph\":\"X\"", "{\"", "},{",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "\n",
    "99999999999999999999999999", "\x80", "\xff", "a\"b", "\"Collective name\":\"", "\x01", " ",
};

/* Return the first place from `at` on where the text goes on with `piece`, 0 if there is none. */
static size_t found(const uint8_t *text_, size_t size, size_t at, const char *piece)
{
    for (; at + strlen(piece) <= size; at++)
        if (!memcmp(text_ + at, piece, strlen(piece)))
            return at;
    return 0;
}

static const char *const SCALARS[] = {
    "0", "-0", "7", "12.5", "1719230400123456.789", "0.001", "12.3456789", "-5.25", "1e3", "1E-400", "1.5e+08", "1e400",
    "2305843009213693951", "2305843009213693952", "2305843009213693.951", "2305843009213693.952", "18446744073709551615",
    "18446744073709551616", "99999999999999999999", "123456789012345678901234567890", "true", "false", "null", "NaN",
    "-NaN", "nan", "Infinity", "-Infinity", "inf", "-inf", "N/A", "\"\"", "\"X\"", "\"s\"", "\"kernel\"", "\"-1\"", "[]",
    "{}", "[1,]", "{\"ph\":\"X\",}", "[ ]", "{ }", "\"\\\\\"", "\"\\\"\"",
};
static const char *const CHARACTERS[] = {
    "a", "{", "}", ",", ":", "[", " ", "\\\"", "\\\\", "\\/", "\\n", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\ude00",
    "\\ud83d\\u0041", "\\u12", "\\q", "\xc3\xa9", "\xf0\x9f\x98\x80", "\x01", "\t", "\x7f", "aaaaaaaaaaaaaaaaa",
};
#define ANY(list) (list)[below(sizeof (list) / sizeof *(list))]

static uint8_t *put(uint8_t *out, const char *piece)
{
    size_t length = strlen(piece);
    memcpy(out, piece, length);
    return out + length;
}

static uint8_t *any_string(uint8_t *out)
{
    out = put(out, "\"");
    for (uint64_t left = below(12); left; left--)
        out = put(out, ANY(CHARACTERS));
    return put(out, "\"");
}

static uint8_t *any_key(uint8_t *out)
{
    if (!below(8))
        return any_string(out);
    out = put(out, "\"");
    out = put(out, FIELDS[below(FIELD_COUNT)].name);
    return put(out, below(9) ? "\"" : "s\"");
}

static uint8_t *any_number(uint8_t *out)
{
    static const uint64_t LENGTHS[] = {1, 3, 17, 20, 25, 210};
    if (!below(4))
        *out++ = '-';
    *out++ = (uint8_t)('1' + below(9));
    for (uint64_t left = below(ANY(LENGTHS)); left; left--)
        *out++ = (uint8_t)('0' + below(10));
    if (below(2))
        *out++ = '.', *out++ = (uint8_t)('0' + below(10));
    for (uint64_t left = out[-2] == '.' ? below(5) : 0; left; left--)
        *out++ = (uint8_t)('0' + below(10));
    return below(6) ? out : put(out, below(2) ? "e5" : "E-123");
}

/* Write a list or an object that is up to three values wide, or a deep one: some are deeper than scan() takes. */
static uint8_t *any_value(uint8_t *out, int depth)
{
    uint64_t kind = below(depth < 4 ? 9 : 6);
    if (kind < 6)
        return kind < 4 ? put(out, ANY(SCALARS)) : kind == 4 ? any_number(out) : any_string(out);
    if (kind == 8) {
        size_t deep = below(20) ? below(DEEPEST - 4) : DEEPEST + below(2);
        memset(out, '[', deep), memset(out + deep, ']', deep);
        return out + 2 * deep;
    }
    out = put(out, kind == 6 ? "[" : "{");
    for (uint64_t left = below(4); left; left--) {
        if (kind == 7)
            out = put(any_key(out), below(9) ? ":" : " \n: ");
        out = any_value(out, depth + 1);
        out = put(out, left > 1 ? "," : "");
    }
    return put(out, kind == 6 ? "]" : "}");
}

/* Put another value in place of one, or another member behind it; return the new length. */
static size_t edited(uint8_t *out, size_t length)
{
    static uint8_t made[1 << 17];
    unsigned marks = 0;
    memset(out + length, 0, 8);
    size_t at = found(out, length, below(length), "\": ");
    at = at ? at : found(out, length, 0, "\": ");
    text end = at ? behind_value(out + at + 3, 0, &marks) : NULL;
    if (!end)
        return length;
    size_t start = at + 3, stop = (size_t)(end - out);
    uint8_t *more = made;
    if (below(3) == 0)
        start = stop, more = put(any_key(put(more, ", ")), ": ");
    more = any_value(more, 0);
    memmove(out + start + (more - made), out + stop, length - stop);
    memcpy(out + start, made, (size_t)(more - made));
    return length + (size_t)(more - made) + start - stop;
}

/* Leave out the space between tokens. */
static size_t compact(uint8_t *out, size_t length)
{
    size_t kept = 0;
    unsigned marks = 0;
    memset(out + length, 0, 8);
    for (text p = out; p < out + length; p++) {
        text end = *p == '"' ? string_end(p + 1, &marks) : p;
        if (!end)
            return length;
        if (*p == '"' || !strchr(" \n\r\t", *p)) {
            memmove(out + kept, p, (size_t)(end + 1 - p));
            kept += (size_t)(end + 1 - p);
        }
        p = end;
    }
    return kept;
}

static size_t damaged(uint8_t *out, size_t length)
{
    size_t at = below(length);
    const char *piece = ANY(PIECES);
    size_t more = strlen(piece), gone = below(3) ? 0 : below(length - at < 60 ? length - at : 60);
    memmove(out + at + more, out + at + gone, length - at - gone);
    memcpy(out + at, piece, more);
    return length + more - gone;
}

/* Copy some events of the text and change them in up to five places; return how many bytes there are. */
static size_t changed(const uint8_t *whole, size_t size, uint8_t *out)
{
    size_t from = found(whole, size, below(size - 8000), "{\n    \"ph\"");
    size_t length = found(whole, size, from + below(3000), "\n  },") + 4 - from;
    int damage = below(2) == 0;
    memcpy(out, whole + from, length);
    if (below(2))
        out[length++] = ']';
    for (uint64_t left = damage ? 0 : 1 + below(5); left; left--)
        length = edited(out, length);
    if (below(2))
        length = compact(out, length);
    for (uint64_t left = damage ? 1 + below(5) : 0; left; left--)
        length = damaged(out, length);
    return length;
}

static int sound(const struct result *r, text p, int64_t count, int64_t stop)
{
    for (int64_t event = 0; event < count; event++) {
        int64_t begin = r->begins[event], end = r->ends[event];
        if (begin < 0 || begin >= end || end >= stop || p[begin] != '{' || p[end] != '}')
            return 0;
        for (int field = 0; field < FIELD_COUNT; field++) {
            int64_t value = r->values[field * r->events + event];
            int state = r->states[event * (FIELD_COUNT + 1) + field];
            if (state == PLAIN && (value < 0 || (FIELDS[field].kind == STRING && value >= r->found)))
                return 0;
        }
    }
    for (int64_t k = 0; k < r->found; k++) {
        int64_t begin = r->string_starts[k], end = begin + r->string_lengths[k];
        if (begin <= 0 || end < begin || end >= stop || p[begin - 1] != '"' || p[end] != '"')
            return 0;
    }
    return count >= FULL;
}

static void *room(size_t bytes)
{
    void *made = malloc(bytes);
    if (!made)
        abort();
    memset(made, 0x55, bytes);
    return made;
}

/* Scan a copy of the text in memory that ends 7 bytes after its 0, with little room for results now and then;
 * return whether the result is sound. */
static int attempt(const uint8_t *text_, size_t size, int64_t *whole)
{
    int64_t most = below(8) ? 400 : 0;
    struct result r = {.events = (int64_t)below(40) + most, .strings = (int64_t)below(60) + most, .slots = 1024};
    size_t events = (size_t)r.events;
    uint8_t *copy = room(size + 8);
    memcpy(copy, text_, size);
    memset(copy + size, 0, 8);
    r.begins = room(8 * events), r.ends = room(8 * events), r.values = room(8 * events * FIELD_COUNT);
    r.states = room(events * (FIELD_COUNT + 1));
    r.string_starts = room(8 * (size_t)r.strings), r.string_lengths = room(8 * (size_t)r.strings);
    r.table = room(4 * (size_t)r.slots);
    int64_t count = scan(copy, (int64_t)size, (int32_t)below(2), FIELDS, FIELD_COUNT, &r);
    int good = sound(&r, copy, count, (int64_t)size);
    *whole += count > 0 && (r.list_end < 0 ? r.ends[count - 1] : r.list_end) == (int64_t)size - 1;
    void *all[] = {copy, r.begins, r.ends, r.values, r.states, r.string_starts, r.string_lengths, r.table};
    for (unsigned k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
    return good;
}

int main(int count, char **arguments)
{
    static uint8_t whole[1 << 20], copy[1 << 20];
    FILE *file = count == 4 ? fopen(arguments[1], "rb") : NULL;
    if (!file)
        return 2;
    size_t size = fread(whole, 1, sizeof whole, file);
    if (size < 10000 || !found(whole, size, 0, "{\n    \"ph\"") || !found(whole, size, size - 4000, "\n  },"))
        return 2;
    int64_t taken = 0;
    state = strtoull(arguments[2], NULL, 10);
    for (long left = atol(arguments[3]); left; left--)
        if (!attempt(copy, changed(whole, size, copy), &taken))
            return 1;
    printf("%lld\n", (long long)taken);
    return 0;
}
