// How what one worker makes comes to the others, decided from the program alone. Most elements are
// tagged: they carry the number of the write that made them, and a reader waits for the data
// itself. Logits that are sampled, and of several sequences rows that are written as products take
// them, have no tags: events say when they are there.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace weft::resident {

/// Buffers that an operation writes, but for caches, and for angles, which stay with the worker.
std::vector<BufferId> written_by(const Program& program, int32_t operation);

/// The last operation before `operation` that writes a buffer which is not the step's input.
int32_t last_writer(const Program& program, BufferId buffer, int32_t operation);

/// Which buffers are rows as products take them: those of several sequences that are as they shall
/// be when they are written, with no norm to come.
std::vector<bool> operand_buffers(const Program& program);

/// Which buffers' elements carry tags: what else is handed on within a step, but for logits.
std::vector<bool> tagged_buffers(const Program& program, const std::vector<bool>& operands);

/// For each event, whether waiting for its operation's data makes waiting for it needless.
std::vector<bool> events_in_data(const Program& program, const std::vector<bool>& tagged);

}  // namespace weft::resident
