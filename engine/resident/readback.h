// What a diff of a resident kernel against the CPU interpreter needs (engine/subject.h): lists of
// codes that end at an operation, and the device's buffers as numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/resident/arena.h"
#include "engine/resident/code.h"
#include "engine/subject.h"
#include "program/program.h"

namespace weft::resident {

/// The codes of one worker that belong to operations before `end`. Waits name operations before
/// the waiting one, so all workers' lists cut at the same operation run to their ends.
std::vector<Code> codes_until(std::span<const Code> codes, int32_t end);

/// For each buffer whether the kernel fills it. It makes normed rows, merged rows and angles on the
/// way to what reads them, and keeps the sequence's state elsewhere.
std::vector<bool> kept_buffers(const Program& program);

/// Bytes of a buffer on the device: whole words of two elements and their tag.
int64_t image_bytes(const Buffer& buffer);

/// A buffer's bytes as numbers. Where elements carry tags (Arena::tagged), `first_tag` is that of
/// the run's step: a tag tells the operation that wrote.
Image decode_buffer(const Program& program, const Arena& arena, BufferId id,
                    std::span<const std::byte> bytes, uint32_t first_tag);

}  // namespace weft::resident
