// The wire layout of every message: one list of its fields, in order. The encoder, the decoder and
// the tests use the same list, so they cannot disagree. Add a new field at the end of its list. If
// a receiver can do without it, put it behind a capability (capability.h); otherwise raise
// kProtocolVersion.
//
// Calls to a visitor (the type on the wire is in brackets):
//   has(capability)                 whether the message has the fields of that capability
//   number(name, value)             any integer [its own width]
//   bounded(name, value, greatest)  an integer that may not exceed `greatest`
//   flag(name, value)               bool [u8: 0 or 1]
//   choice(name, value, last)       an enum whose greatest value is `last` [underlying type]
//   label(name, value, max_bytes)   a name or path [u32 length, bytes]; too long is an error
//   sentence(name, value)           text for people [same]; the encoder shortens it to the limit
//   blob(name, value)               nested encoded data [u32 length, bytes]
//   digest(name, value)             [low u64, high u64]
//   version(name, value)            [epoch u32, step u64]
//   part(name, value)               a struct with its own list of fields here
//   list(name, value, max_count)    [u32 count, elements]; elements are u64, versions or structs
//                                   with their own list of fields here
#pragma once

#include "shared/control/command_fields.h"
#include "shared/control/engine_fields.h"
#include "shared/control/envelope_fields.h"
#include "shared/control/publisher_fields.h"
#include "shared/control/rank_fields.h"
#include "shared/control/sidecar_fields.h"
#include "shared/control/trace_fields.h"
