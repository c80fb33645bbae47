// Of the simulated HIP runtime: graphs, and the capture of streams. An executable graph is a list
// of steps in an order that its dependencies allow; a launch does them one after the other, as one
// piece of a stream's work. Memory that is allocated in a capture is there from then on, at the
// same address in every launch; freed in a capture, it goes with the graph and what was made of it.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sim/hip_runtime.h"
#include "sim/hip_transfer.h"

namespace weft::sim {

using namespace weft::hip;  // NOLINT: this is HIP's other side

namespace {

/// The calling thread's (hipThreadExchangeStreamCaptureMode).
thread_local hipStreamCaptureMode this_mode = hipStreamCaptureModeGlobal;

hipGraphNode_t add(ihipGraph& graph, hipGraphNode node) {
  graph.nodes.push_back(std::make_unique<hipGraphNode>(std::move(node)));
  return graph.nodes.back().get();
}

/// Of a stream that takes part in a capture. Runtime::schedule is locked.
std::optional<hipError_t> void_capture(ihipStream_t& stream) {
  if (stream.capture == nullptr) {
    return std::nullopt;
  }
  const bool was_valid = std::exchange(stream.capture->valid, false);
  return was_valid ? hipErrorStreamCaptureUnsupported : hipErrorStreamCaptureInvalidated;
}

/// The default stream's work would come after what other streams capture. Likewise.
std::optional<hipError_t> void_implicit(ihipStream_t& stream) {
  HipGpu& on = gpu(stream.device);
  std::optional<hipError_t> error;
  for (const ihipStream_t* other : on.streams) {
    if (&stream == &on.null_stream && other->capture != nullptr &&
        (other->flags & hipStreamNonBlocking) == 0) {
      other->capture->valid = false;
      error = hipErrorStreamCaptureImplicit;
    }
  }
  return error;
}

/// The same: nobody captures any more.
void end_capture(const std::shared_ptr<Capture>& ended) {
  for (ihipStream_t* each : ended->streams) {
    each->capture = nullptr;
    each->captured.clear();
  }
  ended->streams.clear();
  ended->graph->capturing = false;
  std::erase(runtime().captures, ended);
}

void take_part(ihipStream_t& stream, const std::shared_ptr<Capture>& capture) {
  stream.capture = capture;
  capture->streams.push_back(&stream);
}

}  // namespace

std::optional<hipError_t> capture(ihipStream_t& stream, hipGraphNode node) {
  const std::lock_guard lock(runtime().schedule);
  if (stream.capture == nullptr) {
    return void_implicit(stream);
  }
  if (!stream.capture->valid) {
    return hipErrorStreamCaptureInvalidated;
  }
  node.after = std::move(stream.captured);
  stream.captured = {add(*stream.capture->graph, std::move(node))};
  return hipSuccess;
}
std::optional<hipError_t> capture(ihipStream_t& stream, hipGraphNodeType type,
                                  std::function<void()> run) {
  hipGraphNode node;
  node.type = type;
  node.run = std::move(run);
  return capture(stream, std::move(node));
}

hipGraphNode graph_node(const hipKernelNodeParams& kernel, const PreparedLaunch& launch) {
  hipGraphNode node;
  node.type = hipGraphNodeTypeKernel;
  node.run = [run = launch.run] {
    LaunchReport report;
    run(report);
  };
  node.kernel = kernel;
  node.arguments = launch.arguments;
  const auto* function = static_cast<hipFunction_t>(kernel.func);
  for (const cdna::KernelArgument& a : function->kernel->info->arguments) {
    if (!a.kind.starts_with("hidden_")) {
      node.pointers.push_back(const_cast<std::byte*>(node.arguments->data() + a.offset));
    }
  }
  return node;
}

std::optional<hipError_t> refuse_capture(ihipStream_t& stream) {
  const std::lock_guard lock(runtime().schedule);
  const auto own = void_capture(stream);
  return own ? own : void_implicit(stream);
}

hipError_t refuse_while_capturing() {
  Runtime& r = runtime();
  const std::lock_guard lock(r.schedule);
  for (const std::shared_ptr<Capture>& each : r.captures) {
    const bool concerns =
        each->thread == std::this_thread::get_id() ||
        (this_mode == hipStreamCaptureModeGlobal && each->mode == hipStreamCaptureModeGlobal);
    if (this_mode != hipStreamCaptureModeRelaxed && each->mode != hipStreamCaptureModeRelaxed &&
        concerns) {
      each->valid = false;
      return result(hipErrorStreamCaptureUnsupported);
    }
  }
  return hipSuccess;
}

std::optional<hipError_t> record_in_capture(ihipStream_t& stream, ihipEvent_t& event) {
  const std::lock_guard lock(runtime().schedule);
  if (stream.capture == nullptr) {
    return void_implicit(stream);
  }
  if (!stream.capture->valid) {
    return hipErrorStreamCaptureInvalidated;
  }
  event.capture = stream.capture;
  event.captured = stream.captured;
  event.work = nullptr;
  return hipSuccess;
}

std::optional<hipError_t> join_capture(ihipStream_t& stream, const ihipEvent_t& event) {
  const std::lock_guard lock(runtime().schedule);
  if (event.capture == nullptr) {
    if (stream.capture == nullptr) {
      return void_implicit(stream);
    }
    stream.capture->valid = stream.capture->valid && event.work == nullptr;
    return event.work == nullptr ? hipSuccess : hipErrorStreamCaptureIsolation;
  }
  if (event.capture->streams.empty()) {
    return hipErrorCapturedEvent;  // that capture has ended
  }
  if (!event.capture->valid) {
    return hipErrorStreamCaptureInvalidated;
  }
  if (stream.capture != nullptr && stream.capture != event.capture) {
    stream.capture->valid = event.capture->valid = false;
    return hipErrorStreamCaptureMerge;
  }
  if (&stream == &gpu(stream.device).null_stream) {
    event.capture->valid = false;
    return hipErrorStreamCaptureImplicit;
  }
  if (stream.capture == nullptr) {
    take_part(stream, event.capture);
  }
  for (hipGraphNode_t node : event.captured) {
    if (std::ranges::find(stream.captured, node) == stream.captured.end()) {
      stream.captured.push_back(node);
    }
  }
  return hipSuccess;
}

void leave_capture(ihipStream_t& stream) {
  const std::lock_guard lock(runtime().schedule);
  if (const std::shared_ptr<Capture> left = stream.capture; left != nullptr) {
    left->valid = false;
    std::erase(left->streams, &stream);
    if (left->origin == &stream) {
      end_capture(left);
      (void)take(runtime().graphs, left->graph);
    }
  }
}

}  // namespace weft::sim

namespace weft::hip {
namespace {

using namespace weft::sim;  // NOLINT: what stands behind HIP's functions

using Step = hipGraphExec::Step;

bool is_in(const ihipGraph& graph, hipGraphNode_t node) {
  return std::any_of(graph.nodes.rbegin(), graph.nodes.rend(),
                     [&](const auto& each) { return each.get() == node; });
}
/// Whether a node is one of a graph that there is.
bool is_known(hipGraphNode_t node) {
  const std::lock_guard lock(runtime().mutex);
  return node != nullptr && std::ranges::any_of(runtime().graphs, [&](const auto& each) {
           return is_in(*each.second, node);
         });
}
bool is_known(hipGraph_t graph) { return known(runtime().graphs, graph); }

/// A graph's nodes in an order that their dependencies allow; false: they go round.
bool order(const ihipGraph& graph, std::vector<Step>& steps) {
  std::unordered_map<hipGraphNode_t, size_t> place;  // of those that are in the order
  const auto ready = [&](const hipGraphNode& node) {
    return std::ranges::all_of(node.after, [&](hipGraphNode_t n) { return place.contains(n); });
  };
  // Nodes are as a rule in such an order: one pass is enough.
  for (bool more = true; more && steps.size() < graph.nodes.size();) {
    more = false;
    for (const auto& node : graph.nodes) {
      if (place.contains(node.get()) || !ready(*node)) {
        continue;
      }
      std::vector<size_t> after;
      for (hipGraphNode_t n : node->after) {
        after.push_back(place.at(n));
      }
      place[node.get()] = steps.size();
      steps.push_back({node.get(), node->type, std::move(after), node->run});
      more = true;
    }
  }
  return steps.size() == graph.nodes.size();
}

/// Does all of it.
std::function<void()> run_of(std::shared_ptr<const std::vector<Step>> steps) {
  return [steps = std::move(steps)] {
    for (const Step& step : *steps) {
      if (step.run) {
        step.run();
      }
    }
  };
}

/// Adds a node that comes after others.
hipError_t add_node(hipGraphNode_t* out, hipGraph_t graph, const hipGraphNode_t* after,
                    size_t count, hipGraphNode node) {
  if (out == nullptr || !is_known(graph) || (after == nullptr && count != 0)) {
    return result(hipErrorInvalidValue);
  }
  const std::lock_guard lock(runtime().schedule);
  for (size_t k = 0; k < count; ++k) {
    if (!is_in(*graph, after[k]) || std::ranges::find(node.after, after[k]) != node.after.end()) {
      return result(hipErrorInvalidValue);
    }
    node.after.push_back(after[k]);
  }
  *out = sim::add(*graph, std::move(node));
  return hipSuccess;
}
hipError_t add_node(hipGraphNode_t* out, hipGraph_t graph, const hipGraphNode_t* after,
                    size_t count, hipGraphNodeType type, std::function<void()> run) {
  hipGraphNode node;
  node.type = type;
  node.run = std::move(run);
  return add_node(out, graph, after, count, std::move(node));
}

/// A kernel's node from what a program says of it.
hipError_t node_of(const hipKernelNodeParams* parameters, hipGraphNode& node) {
  if (parameters == nullptr || parameters->func == nullptr) {
    return result(hipErrorInvalidValue);
  }
  const hipKernelNodeParams& p = *parameters;
  PreparedLaunch launch;
  hipKernelNodeParams kept = p;
  const hipFunction_t function = function_of(p.func, current_device());
  if (function == nullptr) {
    return result(hipErrorInvalidDeviceFunction);
  }
  const hipError_t error = prepare({.function = function,
                                    .grid = {p.gridDim.x, p.gridDim.y, p.gridDim.z},
                                    .block = {p.blockDim.x, p.blockDim.y, p.blockDim.z},
                                    .shared_bytes = p.sharedMemBytes,
                                    .parameters = p.kernelParams,
                                    .extra = p.extra},
                                   launch);
  if (error == hipSuccess) {
    kept.func = function;
    node = graph_node(kept, launch);
  }
  return error;
}

hipError_t give_nodes(const std::vector<hipGraphNode_t>& all, hipGraphNode_t* nodes,
                      size_t* count) {
  if (nodes != nullptr) {
    std::fill_n(nodes, *count, nullptr);
    *count = std::min(*count, all.size());
    std::copy_n(all.begin(), *count, nodes);
  } else {
    *count = all.size();
  }
  return hipSuccess;
}
template <class Wanted>
hipError_t give_nodes(hipGraph_t graph, hipGraphNode_t* nodes, size_t* count, Wanted wanted) {
  if (count == nullptr || !is_known(graph)) {
    return result(hipErrorInvalidValue);
  }
  std::vector<hipGraphNode_t> all;
  const std::lock_guard lock(runtime().schedule);
  for (const auto& node : graph->nodes) {
    if (wanted(*node)) {
      all.push_back(node.get());
    }
  }
  return give_nodes(all, nodes, count);
}

/// Whether all that streams captured comes before what the first of them did.
bool is_joined(const Capture& capture) {
  std::unordered_set<hipGraphNode_t> before;
  std::vector<hipGraphNode_t> open = capture.origin->captured;
  while (!open.empty()) {
    hipGraphNode_t node = open.back();
    open.pop_back();
    if (before.insert(node).second) {
      open.insert(open.end(), node->after.begin(), node->after.end());
    }
  }
  return std::ranges::all_of(capture.streams, [&](const ihipStream_t* stream) {
    return std::ranges::all_of(stream->captured,
                               [&](hipGraphNode_t node) { return before.contains(node); });
  });
}

hipStreamCaptureStatus status_of(const ihipStream_t& stream) {
  return stream.capture == nullptr ? hipStreamCaptureStatusNone
         : stream.capture->valid   ? hipStreamCaptureStatusActive
                                   : hipStreamCaptureStatusInvalidated;
}

}  // namespace

WEFT_HIP hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
  ihipStream_t* known = stream_of(stream);
  if (known == nullptr || mode > hipStreamCaptureModeRelaxed) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  if (known == &gpu(known->device).null_stream) {
    return result(hipErrorStreamCaptureUnsupported);
  }
  Runtime& r = runtime();
  hipGraph_t graph = keep(r.graphs, std::make_unique<ihipGraph>());
  const std::lock_guard lock(r.schedule);
  if (known->capture != nullptr) {
    (void)take(r.graphs, graph);
    return result(hipErrorIllegalState);
  }
  static uint64_t number = 0;
  graph->capturing = true;
  const auto made = std::make_shared<Capture>();
  made->graph = graph;
  made->origin = known;
  made->mode = mode;
  made->thread = std::this_thread::get_id();
  made->number = ++number;
  r.captures.push_back(made);
  take_part(*known, made);
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
  ihipStream_t* known = stream_of(stream);
  if (known == nullptr || graph == nullptr) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  *graph = nullptr;
  Runtime& r = runtime();
  const std::lock_guard lock(r.schedule);
  const std::shared_ptr<Capture> ended = known->capture;
  if (ended == nullptr || ended->origin != known) {
    return result(ended == nullptr ? hipErrorIllegalState : hipErrorStreamCaptureUnmatched);
  }
  if (ended->mode != hipStreamCaptureModeRelaxed && ended->thread != std::this_thread::get_id()) {
    return result(hipErrorStreamCaptureWrongThread);
  }
  const hipError_t error = !ended->valid        ? hipErrorStreamCaptureInvalidated
                           : !is_joined(*ended) ? hipErrorStreamCaptureUnjoined
                                                : hipSuccess;
  sim::end_capture(ended);
  if (error != hipSuccess) {
    (void)take(r.graphs, ended->graph);
    return result(error);
  }
  *graph = ended->graph;
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
  return status == nullptr ? result(hipErrorInvalidValue)
                           : hipStreamGetCaptureInfo(stream, status, nullptr);
}
WEFT_HIP hipError_t hipStreamGetCaptureInfo(hipStream_t stream, hipStreamCaptureStatus* status,
                                            unsigned long long* id) {
  return hipStreamGetCaptureInfo_v2(stream, status, id, nullptr, nullptr, nullptr);
}
WEFT_HIP hipError_t hipStreamGetCaptureInfo_v2(hipStream_t stream, hipStreamCaptureStatus* status,
                                               unsigned long long* id, hipGraph_t* graph,
                                               const hipGraphNode_t** last, size_t* last_count) {
  const ihipStream_t* known = stream_of(stream);
  if (known == nullptr || status == nullptr) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  const std::lock_guard lock(runtime().schedule);
  *status = status_of(*known);
  const bool active = *status == hipStreamCaptureStatusActive;
  if (id != nullptr) {
    *id = active ? known->capture->number : 0;
  }
  if (graph != nullptr) {
    *graph = active ? known->capture->graph : nullptr;
  }
  if (last != nullptr) {
    *last = known->captured.data();
  }
  if (last_count != nullptr) {
    *last_count = known->captured.size();
  }
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamUpdateCaptureDependencies(hipStream_t stream, hipGraphNode_t* nodes,
                                                       size_t count, unsigned flags) {
  constexpr unsigned kReplace = 1;
  ihipStream_t* known = stream_of(stream);
  if (known == nullptr || flags > kReplace || (nodes == nullptr && count != 0)) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  const std::lock_guard lock(runtime().schedule);
  if (status_of(*known) != hipStreamCaptureStatusActive) {
    return result(hipErrorIllegalState);
  }
  if (!std::all_of(nodes, nodes + count,
                   [&](hipGraphNode_t node) { return is_in(*known->capture->graph, node); })) {
    return result(hipErrorInvalidValue);
  }
  if (flags == kReplace) {
    known->captured.clear();
  }
  known->captured.insert(known->captured.end(), nodes, nodes + count);
  return hipSuccess;
}
WEFT_HIP hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode) {
  if (mode == nullptr || *mode > hipStreamCaptureModeRelaxed) {
    return result(hipErrorInvalidValue);
  }
  std::swap(sim::this_mode, *mode);
  return hipSuccess;
}

WEFT_HIP hipError_t hipGraphCreate(hipGraph_t* graph, unsigned flags) {
  if (graph == nullptr || flags != 0) {
    return result(hipErrorInvalidValue);
  }
  *graph = keep(runtime().graphs, std::make_unique<ihipGraph>());
  return hipSuccess;
}
WEFT_HIP hipError_t hipGraphDestroy(hipGraph_t graph) {
  if (!is_known(graph) || graph->capturing) {
    return result(hipErrorInvalidValue);
  }
  (void)take(runtime().graphs, graph);
  return hipSuccess;
}
WEFT_HIP hipError_t hipGraphClone(hipGraph_t* clone, hipGraph_t graph) {
  if (clone == nullptr || !is_known(graph)) {
    return result(hipErrorInvalidValue);
  }
  auto made = std::make_unique<ihipGraph>();
  std::unordered_map<hipGraphNode_t, hipGraphNode_t> same;
  for (const auto& node : graph->nodes) {
    same[node.get()] = sim::add(*made, *node);
  }
  for (const auto& node : made->nodes) {
    std::ranges::transform(node->after, node->after.begin(),
                           [&](hipGraphNode_t n) { return same.at(n); });
  }
  *clone = keep(runtime().graphs, std::move(made));
  return hipSuccess;
}
WEFT_HIP hipError_t hipGraphAddDependencies(hipGraph_t graph, const hipGraphNode_t* from,
                                            const hipGraphNode_t* to, size_t count) {
  if (!is_known(graph) || ((from == nullptr || to == nullptr) && count != 0)) {
    return result(hipErrorInvalidValue);
  }
  const std::lock_guard lock(runtime().schedule);
  for (size_t k = 0; k < count; ++k) {
    if (!is_in(*graph, from[k]) || !is_in(*graph, to[k]) || from[k] == to[k] ||
        std::ranges::find(to[k]->after, from[k]) != to[k]->after.end()) {
      return result(hipErrorInvalidValue);
    }
    to[k]->after.push_back(from[k]);
  }
  return hipSuccess;
}

WEFT_HIP hipError_t hipGraphAddKernelNode(hipGraphNode_t* node, hipGraph_t graph,
                                          const hipGraphNode_t* after, size_t count,
                                          const hipKernelNodeParams* parameters) {
  hipGraphNode made;
  const hipError_t error = node_of(parameters, made);
  return error != hipSuccess ? error : add_node(node, graph, after, count, std::move(made));
}
WEFT_HIP hipError_t hipGraphAddMemcpyNode1D(hipGraphNode_t* node, hipGraph_t graph,
                                            const hipGraphNode_t* after, size_t count, void* to,
                                            const void* from, size_t bytes, hipMemcpyKind kind) {
  Transfer transfer;
  const hipError_t error =
      make_copy({static_cast<std::byte*>(to)}, {static_cast<std::byte*>(const_cast<void*>(from))},
                {bytes, 1, 1}, kind, transfer);
  if (error != hipSuccess) {
    return result(error);
  }
  return add_node(node, graph, after, count, hipGraphNodeTypeMemcpy,
                  done_later(std::move(transfer), current_device()));
}
WEFT_HIP hipError_t hipGraphAddMemsetNode(hipGraphNode_t* node, hipGraph_t graph,
                                          const hipGraphNode_t* after, size_t count,
                                          const hipMemsetParams* parameters) {
  if (parameters == nullptr) {
    return result(hipErrorInvalidValue);
  }
  const hipMemsetParams& p = *parameters;
  size_t width = 0;
  if ((p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) || p.height == 0 ||
      __builtin_mul_overflow(p.width, size_t{p.elementSize}, &width)) {
    return result(hipErrorInvalidValue);
  }
  Transfer transfer;
  const hipError_t error = make_fill({static_cast<std::byte*>(p.dst), p.pitch},
                                     {width, p.height, 1}, p.value, p.elementSize, transfer);
  if (error != hipSuccess) {
    return result(error);
  }
  return add_node(node, graph, after, count, hipGraphNodeTypeMemset,
                  done_later(std::move(transfer), current_device()));
}
WEFT_HIP hipError_t hipGraphAddHostNode(hipGraphNode_t* node, hipGraph_t graph,
                                        const hipGraphNode_t* after, size_t count,
                                        const hipHostNodeParams* parameters) {
  if (parameters == nullptr || parameters->fn == nullptr) {
    return result(hipErrorInvalidValue);
  }
  return add_node(node, graph, after, count, hipGraphNodeTypeHost,
                  [p = *parameters] { p.fn(p.userData); });
}
WEFT_HIP hipError_t hipGraphAddEmptyNode(hipGraphNode_t* node, hipGraph_t graph,
                                         const hipGraphNode_t* after, size_t count) {
  return add_node(node, graph, after, count, {});
}
WEFT_HIP hipError_t hipGraphAddChildGraphNode(hipGraphNode_t* node, hipGraph_t graph,
                                              const hipGraphNode_t* after, size_t count,
                                              hipGraph_t child) {
  auto steps = std::make_shared<std::vector<Step>>();
  if (!is_known(child) || child == graph || !order(*child, *steps)) {
    return result(hipErrorInvalidValue);
  }
  hipGraphNode made;
  made.type = hipGraphNodeTypeGraph;
  made.run = run_of(std::move(steps));
  return add_node(node, graph, after, count, std::move(made));
}

WEFT_HIP hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, size_t* count) {
  return give_nodes(graph, nodes, count, [](const hipGraphNode&) { return true; });
}
WEFT_HIP hipError_t hipGraphGetRootNodes(hipGraph_t graph, hipGraphNode_t* nodes, size_t* count) {
  return give_nodes(graph, nodes, count,
                    [](const hipGraphNode& node) { return node.after.empty(); });
}
WEFT_HIP hipError_t hipGraphNodeGetType(hipGraphNode_t node, hipGraphNodeType* type) {
  if (type == nullptr || !is_known(node)) {
    return result(hipErrorInvalidValue);
  }
  *type = node->type;
  return hipSuccess;
}
WEFT_HIP hipError_t hipGraphNodeGetDependencies(hipGraphNode_t node, hipGraphNode_t* nodes,
                                                size_t* count) {
  return count == nullptr || !is_known(node) ? result(hipErrorInvalidValue)
                                             : give_nodes(node->after, nodes, count);
}
WEFT_HIP hipError_t hipGraphKernelNodeGetParams(hipGraphNode_t node,
                                                hipKernelNodeParams* parameters) {
  if (parameters == nullptr || !is_known(node) || node->type != hipGraphNodeTypeKernel) {
    return result(hipErrorInvalidValue);
  }
  *parameters = node->kernel;
  parameters->kernelParams = node->pointers.data();
  parameters->extra = nullptr;
  return hipSuccess;
}
WEFT_HIP hipError_t hipGraphKernelNodeSetParams(hipGraphNode_t node,
                                                const hipKernelNodeParams* parameters) {
  if (!is_known(node) || node->type != hipGraphNodeTypeKernel) {
    return result(hipErrorInvalidValue);
  }
  hipGraphNode made;
  const hipError_t error = node_of(parameters, made);
  if (error == hipSuccess) {
    made.after = node->after;
    *node = std::move(made);
  }
  return error;
}

WEFT_HIP hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* executable, hipGraph_t graph,
                                                 unsigned long long) {
  auto steps = std::make_shared<std::vector<Step>>();
  if (executable == nullptr || !is_known(graph) || graph->capturing || !order(*graph, *steps)) {
    return result(hipErrorInvalidValue);
  }
  auto made = std::make_unique<hipGraphExec>();
  made->steps = std::move(steps);
  *executable = keep(runtime().executables, std::move(made));
  return hipSuccess;
}
WEFT_HIP hipError_t hipGraphInstantiate(hipGraphExec_t* executable, hipGraph_t graph,
                                        hipGraphNode_t*, char* log, size_t log_bytes) {
  if (log != nullptr && log_bytes != 0) {
    *log = 0;
  }
  return hipGraphInstantiateWithFlags(executable, graph, 0);
}
WEFT_HIP hipError_t hipGraphExecDestroy(hipGraphExec_t executable) {
  return result(take(runtime().executables, executable) != nullptr ? hipSuccess
                                                                   : hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipGraphExecKernelNodeSetParams(hipGraphExec_t executable, hipGraphNode_t node,
                                                    const hipKernelNodeParams* parameters) {
  if (!known(runtime().executables, executable)) {
    return result(hipErrorInvalidValue);
  }
  auto steps = std::make_shared<std::vector<Step>>(*executable->steps);
  const auto found = std::ranges::find(*steps, node, &Step::node);
  if (found == steps->end() || found->type != hipGraphNodeTypeKernel) {
    return result(hipErrorInvalidValue);
  }
  hipGraphNode made;
  const hipError_t error = node_of(parameters, made);
  if (error == hipSuccess) {
    found->run = std::move(made.run);
    executable->steps = std::move(steps);
  }
  return error;
}
WEFT_HIP hipError_t hipGraphExecUpdate(hipGraphExec_t executable, hipGraph_t graph,
                                       hipGraphNode_t* wrong, hipGraphExecUpdateResult* outcome) {
  std::vector<Step> fresh;
  if (outcome == nullptr || wrong == nullptr || !known(runtime().executables, executable) ||
      !is_known(graph) || !order(*graph, fresh)) {
    return result(hipErrorInvalidValue);
  }
  auto steps = std::make_shared<std::vector<Step>>(*executable->steps);
  *wrong = nullptr;
  *outcome = steps->size() == fresh.size() ? hipGraphExecUpdateSuccess
                                           : hipGraphExecUpdateErrorTopologyChanged;
  for (size_t k = 0; k < fresh.size() && *outcome == hipGraphExecUpdateSuccess; ++k) {
    Step& step = (*steps)[k];
    if (step.type != fresh[k].type || step.after != fresh[k].after) {
      *wrong = fresh[k].node;
      *outcome = step.type != fresh[k].type ? hipGraphExecUpdateErrorNodeTypeChanged
                                            : hipGraphExecUpdateErrorTopologyChanged;
    }
    step.run = fresh[k].run;
  }
  if (*outcome != hipGraphExecUpdateSuccess) {
    return result(hipErrorGraphExecUpdateFailure);
  }
  executable->steps = std::move(steps);
  return hipSuccess;
}
WEFT_HIP hipError_t hipGraphUpload(hipGraphExec_t executable, hipStream_t stream) {
  if (!known(runtime().executables, executable)) {
    return result(hipErrorInvalidValue);
  }
  return result(stream_of(stream) != nullptr ? hipSuccess : hipErrorInvalidHandle);
}
WEFT_HIP hipError_t hipGraphLaunch(hipGraphExec_t executable, hipStream_t stream) {
  ihipStream_t* known_stream = stream_of(stream);
  if (known_stream == nullptr || !known(runtime().executables, executable)) {
    return result(known_stream == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  const std::function<void()> run = run_of(executable->steps);
  if (const auto captured = capture(*known_stream, hipGraphNodeTypeGraph, run)) {
    return result(*captured);
  }
  const std::shared_ptr<Work> work = submit(*known_stream, run);
  if (runtime().blocking) {
    wait_for(work);
    return result(take_failure(known_stream->device));
  }
  return hipSuccess;
}

}  // namespace weft::hip
