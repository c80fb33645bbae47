// A verifier of what a resident kernel is given: executes two steps of the lowered codes
// symbolically, as the kernel does, and looks at every way that workers may run ahead of one
// another. Where verify() (program/verify.h) sees what a program orders by its events, this sees
// what is left of it: tags, the few events, what is published of the next token, and the order in
// which weights stream in.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "base/result.h"
#include "engine/resident/lower.h"
#include "program/program.h"

namespace weft::resident {

/// How a step's next tokens come about.
enum class NextToken : uint8_t {
  best,     ///< all workers publish the best of their logits
  sampled,  ///< one worker a sequence draws it
  forced,   ///< it is the prompt's
};

/// The bytes that a product's code takes of its worker's stream.
using StreamBytes = std::function<int64_t(const Code& code)>;

/// Holds that, with the sequences at `position` and then at the next one,
/// - all workers come to the end of both steps;
/// - who reads an element finds the write that it names, and nobody writes the next one there
///   before all have read it;
/// - what has no tags (logits, rows that are operands, the KV cache) is read after it was written,
///   and that write is visible: by an event or by what is published between steps;
/// - a worker's weights lie in its stream in the order in which its products use them.
/// The program gives names. Errors (input): one sentence that names worker and operation.
Status verify_codes(const Lowered& lowered, const Program& program, const StreamBytes& stream_bytes,
                    NextToken next, int64_t position);

/// One sentence that names worker and operation.
Error code_fault(const Program& program, size_t worker, const Code& code, std::string_view what);

}  // namespace weft::resident
