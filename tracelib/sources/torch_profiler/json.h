/* The grammar of JSON: what follows a string, a number, a value; with the few faults that salvage.py repairs.
 *
 * No step goes beyond a 0, which is none of JSON's characters, and none reads more than 7 bytes behind it: so there is no
 * other check for the end. What was met on the way is noted in `marks`.
 */
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the lowest byte of a word must be the first character"
#endif

typedef const uint8_t *text;

/* Marks: a backslash; a fault that is repaired; characters beyond ASCII; a number that may be none for a double. */
enum { ESCAPES = 1, FAULTS = 2, BEYOND_ASCII = 4, EXTREMES = 8 };
enum { DEEPEST = 62 };              /* lists and objects within a value; deeper ones are refused */

static const uint64_t ONES = 0x0101010101010101, TOPS = 0x8080808080808080;     /* the lowest and the highest bit of bytes */

static uint64_t word(text p)
{
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}

static text behind_space(text p)
{
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')
        p++;
    return p;
}

/* The lowest byte of each word that is special has its top bit set in the result: a quote, a backslash, a control
 * character (Mycroft's test for a zero byte: only bytes above the lowest one may be marked wrongly). */
static uint64_t specials(uint64_t w)
{
    uint64_t quote = w ^ (ONES * '"'), slash = w ^ (ONES * '\\');
    return (((quote - ONES) & ~quote) | ((slash - ONES) & ~slash) | ((w - ONES * 0x20) & ~w)) & TOPS;
}

/* Return the number that four hexadecimal digits stand for, -1 if they are none. */
static int hexadecimal(text p)
{
    int value = 0;
    for (int k = 0; k < 4; k++) {
        uint8_t c = p[k], letter = c | 0x20;
        if (c >= '0' && c <= '9')
            value = value << 4 | (c - '0');
        else if (letter >= 'a' && letter <= 'f')
            value = value << 4 | (letter - 'a' + 10);
        else
            return -1;
    }
    return value;
}

/* Return what follows the escape at p; a backslash that begins none stands for itself, as does half of a surrogate pair. */
static text behind_escape(text p, unsigned *marks)
{
    *marks |= ESCAPES;
    if (p[1] && strchr("\"\\/bfnrt", p[1]))
        return p + 2;
    int unit = p[1] == 'u' ? hexadecimal(p + 2) : -1;
    if (unit >= 0 && (unit < 0xD800 || unit >= 0xE000))
        return p + 6;
    int second = unit >= 0 && unit < 0xDC00 && p[6] == '\\' && p[7] == 'u' ? hexadecimal(p + 8) : -1;
    if (second >= 0xDC00 && second < 0xE000)
        return p + 12;
    *marks |= FAULTS;
    return unit < 0 ? p + 1 : p + 6;
}

/* Return the closing quote of the string whose characters begin at p, NULL if it has none. */
static text string_end(text p, unsigned *marks)
{
    for (;;) {
        uint64_t w = word(p), found = specials(w);
        *marks |= w & TOPS ? BEYOND_ASCII : 0;
        if (!found) {
            p += 8;
            continue;
        }
        p += __builtin_ctzll(found) >> 3;
        if (*p == '"')
            return p;
        if (*p == '\\') {
            p = behind_escape(p, marks);
        } else {                            /* a control character */
            if (!*p)
                return NULL;
            *marks |= FAULTS;
            p++;
        }
    }
}

struct number {
    uint64_t digits;                /* all digits as one number, right if there are fewer than 20 */
    int whole, decimals;            /* how many digits stand before and after the point */
    int plain;                      /* neither a sign nor an exponent */
    int extreme;                    /* it may be out of a double's range */
};

static text digits(text p, uint64_t *value)
{
    for (; *p >= '0' && *p <= '9'; p++)
        *value = *value * 10 + (*p - '0');
    return p;
}

/* Read the number at p; return what follows it, NULL if it is none. */
static text number(text p, struct number *found)
{
    *found = (struct number){.plain = *p != '-'};
    if (*p == '-')
        p++;
    text q = digits(p, &found->digits);
    found->whole = (int)(q - p);
    if (!found->whole || (*p == '0' && found->whole > 1))
        return NULL;
    if (*q == '.') {
        p = q + 1;
        q = digits(p, &found->digits);
        found->decimals = (int)(q - p);
        if (!found->decimals)
            return NULL;
    }
    if ((*q | 0x20) == 'e') {
        uint64_t exponent = 0;
        found->plain = 0;
        p = q + 1;
        if (*p == '+' || *p == '-')
            p++;
        q = digits(p, &exponent);
        if (q == p)
            return NULL;
        found->extreme = q - p > 2;
    }
    found->extreme |= found->whole > 200;
    return q;
}

static text behind_word(text p, const char *name)
{
    size_t length = strlen(name);
    return strncmp((const char *)p, name, length) ? NULL : p + length;
}

/* Return what follows a number that is not finite, as some writers spell it; NULL if there is none at p. */
static text behind_not_finite(text p, unsigned *marks)
{
    static const char *const names[] = {"NaN", "nan", "Infinity", "inf", "N/A"};
    text end = NULL;
    if (*p == '-')
        p++;
    for (unsigned k = 0; k < sizeof names / sizeof *names && !end; k++)
        end = behind_word(p, names[k]);
    *marks |= FAULTS;
    return end;
}

/* At a comma or at the end of a list or object: return where the next item begins, or set `closed` and return what
 * follows the end. NULL if neither stands there. */
static text next_item(text p, uint8_t close, int *closed, unsigned *marks)
{
    p = behind_space(p);
    if (*p == ',') {
        p = behind_space(p + 1);
        if (*p != close)
            return p;
        *marks |= FAULTS;                   /* a comma too much */
    }
    *closed = 1;
    return *p == close ? p + 1 : NULL;
}

/* Return where the value of the key begins that ended before p; NULL if there is none. */
static text behind_colon(text p)
{
    p = behind_space(p);
    return *p == ':' ? behind_space(p + 1) : NULL;
}

static text behind_value(text p, int depth, unsigned *marks);

/* Return what follows the list or object that opens before p and closes with `close`. */
static text behind_items(text p, uint8_t close, int depth, unsigned *marks)
{
    int closed = 0;
    p = behind_space(p);
    if (*p == close)
        return p + 1;
    while (!closed) {
        if (close == '}' && (*p != '"' || !(p = string_end(p + 1, marks)) || !(p = behind_colon(p + 1))))
            return NULL;
        p = behind_value(p, depth + 1, marks);
        if (!p || !(p = next_item(p, close, &closed, marks)))
            return NULL;
    }
    return p;
}

/* Return what follows the value at p, NULL if there is none. */
static text behind_value(text p, int depth, unsigned *marks)
{
    struct number ignored;
    text end;
    switch (*p) {
    case '"':
        p = string_end(p + 1, marks);
        return p ? p + 1 : NULL;
    case '[':
        return depth < DEEPEST ? behind_items(p + 1, ']', depth, marks) : NULL;
    case '{':
        return depth < DEEPEST ? behind_items(p + 1, '}', depth, marks) : NULL;
    case 't':
        return behind_word(p, "true");
    case 'f':
        return behind_word(p, "false");
    case 'n':
        end = behind_word(p, "null");
        return end ? end : behind_not_finite(p, marks);
    default:
        end = number(p, &ignored);
        *marks |= end && ignored.extreme ? EXTREMES : 0;
        return end ? end : behind_not_finite(p, marks);
    }
}
