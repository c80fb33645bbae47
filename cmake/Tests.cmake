# Every family on the second of two AMD targets, for which the same kernels are compiled.
set(weft_families_again Slow/CdnaModels.*gfx950*:Slow/CdnaPrefill.*gfx950*:Slow/CdnaDiff.*gfx950*)
string(APPEND weft_families_again :SlowExperts/CdnaModels.*gfx950*:Slow/CdnaPrefillOf.*gfx950*:Some/CdnaDiff.*gfx950*)
# What finds most days what another target, model or form has found, and takes long: the second AMD
# target; on Hopper's simulator two more mixtures, weights in eight bits, drafts, slots' company.
set(weft_again *gfx950*:*/HopperDecode.*gpt_oss*:*/HopperDecode.*qwen2_moe*:*/HopperDecode.*fp8_block*)
string(APPEND weft_again :*/HopperLatents.*fp8_block*:HopperSlots.Drafts*:HopperSlots.AnswersDoNotDepend*)
# And what takes seconds and other tests of the same thing do not: two minutes hold the rest.
string(APPEND weft_again :*CdnaStep.*:*CdnaDiff.FindsNothingWhereSplits*:*CdnaPrefill.LogitsAreTheCpus/*gemma3*)
string(APPEND weft_again :Matrix.Multiplies*:IsaMatrix.Registers*:*/Parking.*:*/Hazards.NoneInWhat*)
string(APPEND weft_again :*/RandomInstructions.*:*/OrdinaryKernels.Persistent*:Convert.IsThatOf*)
string(APPEND weft_again :HopperSample.Draws*:TiledLinear.LinearIs*:*/HopperSinks.AreTheCpus/72)
string(APPEND weft_again :M*Hopper.MatchesTheReference:HopperSlots.AnswersOfManyAre*:HopperSlots.PromptsAreFed*)
if(NOT WEFT_SANITIZE)  # of these the sanitized build runs no others
  string(APPEND weft_again :*/Goldens.TheSameBits*:AttentionBackward.Matches*:AttentionForward.Matches*)
  string(APPEND weft_again :MlaPrompt.Matches*:Fp8Sums.*:VerifyCodes.SeveralSequences*:VerifyCodes.Latent*)
endif()

# What asks for numbers or schedules of larger models: in the sanitized build minutes, and none that the small
# ones miss.
set(weft_numbers Lower.SmallModelsAreSoundForAll*:CdnaLower.StreamsHaveTheWeightsOnce:VerifyCodes.LatentRowsAre*)
string(APPEND weft_numbers :VerifyCodes.SeveralSequencesOfMixtures*:VerifyCodes.WeightsInFp8*)
string(APPEND weft_numbers :Engine.ChunksOfAnyLengthOfAWideModel:Engine.PackedWeightsGive*:Engine.LogitsOfDecodeAreThose*:DemoModel.*)

# Those of these rooms are compiled each alone (CMAKE_UNITY_BUILD): they say in the same words what they test.
set(weft_tests_alone model)

# One GoogleTest program per room. Tests whose name contains 'Slow', and those of weft_again, run
# outside the 'quick' label.
function(weft_add_tests room)
  set(target test_${room})
  add_executable(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE weft weft_flags weft_dependencies GTest::gtest GTest::gtest_main)
  if(room IN_LIST weft_tests_alone)
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endif()
  # g++ 12 sees overlapping copies in string concatenation where there are none (GCC bug 105651).
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  # A test runs once: optimising it takes longer than it then saves, but where it multiplies matrices
  # itself (ops) or models instructions (sim).
  if(NOT room STREQUAL sim)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:$<$<CONFIG:Release>:-O1>>)
    if(WEFT_SANITIZE)
      target_compile_options(${target} PRIVATE $<IF:$<STREQUAL:${room},ops>,-O1,-O0>)
    endif()
  endif()
  target_compile_definitions(${target} PRIVATE WEFT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # What proves codes works alone: not in line with what needs all cores (RUN_SERIAL, below).
  set(codes)
  set(left_out ${weft_again})
  if(WEFT_SANITIZE)
    string(APPEND left_out :${weft_numbers})
  endif()
  if(room STREQUAL engine)
    set(codes VerifyCodes.*:Lower.*:CdnaLower.*)
    add_test(NAME engine_codes COMMAND ${target} --gtest_filter=${codes}-*Slow*:${left_out})
    set_tests_properties(engine_codes PROPERTIES LABELS quick)
    string(APPEND left_out :${codes})
  endif()
  add_test(NAME ${room} COMMAND ${target} --gtest_filter=-*Slow*:${left_out})
  set_tests_properties(${room} PROPERTIES LABELS quick)
  # (Some of these take minutes together and are long: cdna_long, sim_compiled.)
  add_test(NAME ${room}_slow COMMAND ${target}
    --gtest_filter=*Slow*:${weft_again}-*OnAllUnits*:*WhatClangCompiles*:${weft_families_again})
  set_tests_properties(${room}_slow PROPERTIES LABELS slow)
  if(room STREQUAL engine)  # its workers wait for each other on every core
    set_tests_properties(${room} ${room}_slow PROPERTIES RUN_SERIAL ON)
  endif()
  # What runs kernels of the CPU, as on a machine that has fewer instructions; of the engine's tests those
  # of numbers. MatchesTheReference goes through all instruction sets by itself.
  if(room MATCHES "^(arch|ops)$")
    weft_add_with_isas(${room} slow ${target} --gtest_filter=-*Slow*:*.MatchesTheReference)
  elseif(room STREQUAL engine)
    weft_add_with_isas(engine slow ${target} --gtest_filter=*Goldens*:DemoModel*:CpuInterpreter*-*Slow*:*TheSameBits*)
  endif()
endfunction()

# NAME_avx2 and NAME_scalar: the same test with the instruction set cut down (arch/cpu/dispatch.h).
function(weft_add_with_isas name label)
  foreach(isa avx2 scalar)
    add_test(NAME ${name}_${isa} COMMAND ${ARGN})
    set_tests_properties(${name}_${isa} PROPERTIES LABELS ${label} ENVIRONMENT WEFT_ISA=${isa})
    if(name MATCHES "^(engine|cli)$")
      set_tests_properties(${name}_${isa} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
endfunction()

foreach(room IN LISTS WEFT_ROOMS)
  if(weft_tests_${room})
    weft_add_tests(${room} ${weft_tests_${room}})
  endif()
endforeach()

if(weft_tests_serve)
  weft_add_tests(serve ${weft_tests_serve})
  target_link_libraries(test_serve PRIVATE weft_serve)
endif()

if(TARGET weft_sim AND weft_tests_sim)
  weft_add_tests(sim ${weft_tests_sim})
  target_link_libraries(test_sim PRIVATE weft_sim)
  target_compile_definitions(test_sim PRIVATE
    WEFT_SIM_KERNELS="${WEFT_SIM_KERNELS}" WEFT_SIM_HIP_LIBRARY="$<TARGET_FILE:weft_sim_hip>")
  add_dependencies(test_sim weft_sim_hip sim_kernels)
endif()

# Models on simulated AMD GPUs.
if(TARGET weft_sim AND NOT WEFT_CDNA_LEFT_OUT AND NOT WEFT_SANITIZE)
  weft_add_tests(cdna ${PROJECT_SOURCE_DIR}/engine/cdna/models_test.cc
    ${PROJECT_SOURCE_DIR}/engine/cdna/diff_test.cc
    ${PROJECT_SOURCE_DIR}/engine/prefill/prefill_test.cc
    ${PROJECT_SOURCE_DIR}/tests/simulated/step_attention_test.cc
    ${PROJECT_SOURCE_DIR}/tests/simulated/step_test.cc
    ${PROJECT_SOURCE_DIR}/tests/simulated/install.cc)
  target_link_libraries(test_cdna PRIVATE weft_sim)
  # 200 greedy and 100 sampled tokens of the demo model on each target, a layer of a public size on all
  # units, and families: minutes.
  add_test(NAME cdna_long
    COMMAND test_cdna --gtest_filter=*DemoModel*:*OnAllUnits*:${weft_families_again})
  set_tests_properties(cdna_long PROPERTIES
    LABELS long TIMEOUT 3600 ENVIRONMENT WEFT_DEMO_TOKENS=200)
endif()

# The interpreter of PTX; as the simulator not in the sanitized build, of whose time it would take a tenth.
if(weft_tests_ptx AND NOT WEFT_SANITIZE)
  weft_add_tests(ptx ${weft_tests_ptx})
  target_link_libraries(test_ptx PRIVATE weft_ptx_sim)
endif()

# What otherwise only an NVIDIA GPU runs, on the interpreter.
if(TARGET weft_ptx)
  file(GLOB hopper_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/sim/hopper/runtime*_test.c[cu]
    ${CMAKE_SOURCE_DIR}/engine/hopper/models_test.cc ${CMAKE_SOURCE_DIR}/engine/hopper/slots_test.cc)
  list(APPEND hopper_tests ${weft_cuda_tests})
  weft_add_tests(hopper ${hopper_tests})
  weft_simulate_cuda(test_hopper)
  # The kernels and tiles that dispatch chooses on an H200, where a small device has others.
  add_test(NAME hopper_h200 COMMAND test_hopper --gtest_filter=*Hopper.MatchesTheReference)
  set_tests_properties(hopper_h200 PROPERTIES LABELS slow ENVIRONMENT WEFT_PTX_SMS=132)
endif()

# The rooms include each other in one direction only.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME dependencies
  COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/dependencies/check.py ${PROJECT_SOURCE_DIR})
add_test(NAME dependencies_check
  COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/dependencies/check_test.py)
set_tests_properties(dependencies dependencies_check PROPERTIES LABELS quick)

# The benchmark that scripts/compare-tokenizers runs beside Hugging Face's.
add_subdirectory(${PROJECT_SOURCE_DIR}/tests/tokenizer tests/tokenizer)

# The command as a user meets it.
if(TARGET weft_command)
  add_test(NAME cli
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/cli/test_cli.py $<TARGET_FILE:weft_command>)
  set_tests_properties(cli PROPERTIES LABELS quick RUN_SERIAL ON)  # as engine
  if(NOT WEFT_SANITIZE)  # what it asks of the command, cli asks of it, too
    add_test(NAME performance_pages
      COMMAND Python3::Interpreter -B ${PROJECT_SOURCE_DIR}/tests/pages/test_pages.py $<TARGET_FILE:weft_command>)
    set_tests_properties(performance_pages PROPERTIES LABELS quick)
  endif()
  weft_add_with_isas(cli long
    Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/cli/test_cli.py $<TARGET_FILE:weft_command>)
endif()

# The server as its clients meet it. What needs packages that are not here is skipped in words (`scripts/setup
# clients`, `browser`, `ray`).
if(TARGET weft_command)
  function(weft_add_serve_test name labels)
    add_test(NAME ${name} COMMAND ${ARGN} $<TARGET_FILE:weft_command>)
    set_tests_properties(${name} PROPERTIES LABELS "${labels}" SKIP_RETURN_CODE 77 RUN_SERIAL ON)
  endfunction()
  set(serve_tests ${PROJECT_SOURCE_DIR}/tests/serve)
  weft_add_serve_test(serve_http quick Python3::Interpreter -B ${serve_tests}/test_serve.py)
  weft_add_serve_test(serve_replicas clients Python3::Interpreter -B ${serve_tests}/test_replicas.py)
  weft_add_serve_test(serve_clients clients bash ${serve_tests}/with_packages.sh clients test_clients.py)
  weft_add_serve_test(serve_page browser Python3::Interpreter -B ${serve_tests}/test_page.py)
  weft_add_serve_test(serve_ray ray bash ${serve_tests}/with_packages.sh ray test_ray.py)
  weft_add_serve_test(serve_soak long Python3::Interpreter -B ${serve_tests}/soak.py)
  set_tests_properties(serve_soak PROPERTIES TIMEOUT 1800)
endif()

# Under ThreadSanitizer what threads do together, of the server what asks for no times.
if(TARGET weft_command AND WEFT_SANITIZE STREQUAL thread)
  add_test(NAME engine_threads
    COMMAND test_engine --gtest_filter=Slots.*:PagePool.*:WorkerTeam.*:CpuInterpreter.*)
  add_test(NAME serve_threads COMMAND Python3::Interpreter -B ${serve_tests}/test_serve.py
    $<TARGET_FILE:weft_command> Wire Chat Errors Keys Load Life)
  set_tests_properties(engine_threads serve_threads PROPERTIES LABELS threads RUN_SERIAL ON)
endif()

# And on whole processors of the past.
find_program(WEFT_QEMU qemu-x86_64)
mark_as_advanced(WEFT_QEMU)
if(TARGET weft_command AND NOT WEFT_SANITIZE)
  if(WEFT_QEMU)
    add_test(NAME processors
      COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/cli/test_processors.py $<TARGET_FILE:weft_command>)
    set_tests_properties(processors PROPERTIES LABELS slow)
  else()
    message(STATUS "  left out: the test on older processors (qemu-x86_64 not found, scripts/setup test installs it)")
  endif()
endif()

# The AMD kernels, run by the simulator: the small cases, and, outside the quick label, all of them
# and every way to cut the small ones.
if(TARGET weft_command AND TARGET weft_sim AND NOT WEFT_CDNA_LEFT_OUT AND NOT WEFT_SANITIZE)
  foreach(target IN LISTS WEFT_CDNA_TARGETS)
    # Of one target every day: most cases find in the other what they find in it; and without what takes
    # as long as all else together.
    if(target STREQUAL "gfx950")
      add_test(NAME check_${target} COMMAND weft_command check --quick --device sim:${target})
      set_tests_properties(check_${target} PROPERTIES LABELS slow)
      set(seeds_label long)
    else()
      set(seeds_label slow)
      file(GLOB operations RELATIVE ${PROJECT_SOURCE_DIR}/ops CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/ops/*/cases.inc)
      list(TRANSFORM operations REPLACE "/cases.inc" "")
      set(heavy moe mla_decode mla_layer)
      list(REMOVE_ITEM operations ${heavy})
      add_test(NAME check_${target} COMMAND weft_command check ${operations} --quick --device sim:${target})
      set_tests_properties(check_${target} PROPERTIES LABELS quick)
      add_test(NAME check_${target}_heavy COMMAND weft_command check ${heavy} --quick --device sim:${target})
      set_tests_properties(check_${target}_heavy PROPERTIES LABELS slow)
    endif()
    add_test(NAME check_${target}_all COMMAND weft_command check --device sim:${target})
    add_test(NAME check_${target}_plans
      COMMAND weft_command check --quick --all-plans --device sim:${target})
    # Minutes each: `ctest -L long`, not part of scripts/test.
    set_tests_properties(check_${target}_all check_${target}_plans PROPERTIES LABELS long)
    # In random orders, with caches that keep old copies.
    add_test(NAME check_${target}_seeds
      COMMAND weft_command check --quick --device sim:${target})
    set_tests_properties(check_${target}_seeds PROPERTIES LABELS ${seeds_label} ENVIRONMENT WEFT_SIM_SEED=1)
    # A layer of every family's public size on all compute units, against the CPU; DeepSeek's first has
    # no experts.
    foreach(preset llama-3.1-8b llama-3.2-1b mistral-7b qwen2.5-coder-1.5b qwen3-8b olmo-2-1b
        instella-3b granite-3.1-2b smollm3-3b gemma-2-2b gemma-3-1b phi-3-mini-4k starcoder2-3b
        starcoder2-7b phi-4 mixtral-8x7b qwen3-30b-a3b olmoe-1b-7b qwen1.5-moe-a2.7b gpt-oss-20b
        deepseek-v2-lite)
      set(layers 1)
      if(preset STREQUAL deepseek-v2-lite)
        set(layers 2)
      endif()
      add_test(NAME diff_${target}_${preset} COMMAND weft_command diff --device sim:${target}
        --preset ${preset} --layers ${layers} --context 64 --prompt-tokens 1)
      set_tests_properties(diff_${target}_${preset} PROPERTIES LABELS long TIMEOUT 3600)
    endforeach()
  endforeach()
endif()

# The road to a real GPU, through a libamdhip64.so that is opened at run time: here the simulator's.
if(TARGET weft_command AND TARGET weft_sim_hip AND NOT WEFT_CDNA_LEFT_OUT AND NOT WEFT_SANITIZE)
  set(hip_dir ${CMAKE_BINARY_DIR}/hip)
  file(MAKE_DIRECTORY ${hip_dir})
  file(CREATE_LINK ${CMAKE_BINARY_DIR}/libweft-amdhip64.so ${hip_dir}/libamdhip64.so SYMBOLIC)
  add_test(NAME hip_library COMMAND weft_command check swiglu_quant gemm_skinny --quick --device hip:1)
  # Without --device: the first that there is of hip, cuda, cpu.
  add_test(NAME hip_first COMMAND weft_command check swiglu_quant --quick --case rows=1,*)
  set_tests_properties(hip_first PROPERTIES PASS_REGULAR_EXPRESSION "^hip:0, ")
  # What `scripts/test gpu` runs on an AMD GPU: a case of each kind.
  add_test(NAME hip_models COMMAND ${CMAKE_COMMAND} -E env WEFT=$<TARGET_FILE:weft_command>
    $<TARGET_FILE:Python3::Interpreter> -B ${PROJECT_SOURCE_DIR}/tests/gpu/run.py least --device hip --threads 3)
  set_tests_properties(hip_models PROPERTIES
    LABELS slow ENVIRONMENT LD_LIBRARY_PATH=${hip_dir})
  set_tests_properties(hip_library hip_first PROPERTIES
    LABELS quick ENVIRONMENT LD_LIBRARY_PATH=${hip_dir})
endif()

# Kernels as others write them, compiled by Triton, run by the simulator through HIP's calls. Skipped, in
# words, where `scripts/setup corpus` was not run. Numbers and random kernels are always the same here, others
# are for run.py by hand: a compiler that folds what it may not be asked to fold should not fail a change that
# has nothing to do with it.
if(TARGET weft_sim_hip AND NOT WEFT_SANITIZE)
  # A random kernel takes 1.4 s to compile where that was not done before.
  set(corpus Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/corpus/run.py $<TARGET_FILE:weft_sim_hip> --seed 5000)
  add_test(NAME corpus COMMAND ${corpus} --random 40 --by-turns --table ${CMAKE_BINARY_DIR}/corpus.txt)
  add_test(NAME corpus_long COMMAND ${corpus} --random 400)
  set_tests_properties(corpus PROPERTIES LABELS slow TIMEOUT 1200 SKIP_RETURN_CODE 77)
  set_tests_properties(corpus_long PROPERTIES LABELS long TIMEOUT 3600 SKIP_RETURN_CODE 77)
endif()

# 10,000 damaged code objects of each of five kernels.
if(TARGET test_sim)
  add_test(NAME sim_damaged COMMAND test_sim --gtest_filter=*FlippedBytes*)
  set_tests_properties(sim_damaged PROPERTIES LABELS long ENVIRONMENT WEFT_HOSTILE_CASES=10000)
  # All AMD kernels compiled with less optimisation, for wait states.
  add_test(NAME sim_compiled COMMAND test_sim --gtest_filter=*WhatClangCompiles*)
  set_tests_properties(sim_compiled PROPERTIES LABELS long)
endif()

# The C interface: what it exports, its structures, its example.
if(NOT WEFT_SANITIZE)
  add_test(NAME capi COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/capi/check.py
    $<TARGET_FILE:weft_shared> ${CMAKE_C_COMPILER} $<$<TARGET_EXISTS:weft_sim>:--simulator>)
  set_tests_properties(capi PROPERTIES LABELS quick)
  add_test(NAME capi_copyable
    COMMAND bash ${PROJECT_SOURCE_DIR}/tests/copyable.sh $<TARGET_FILE:weft_shared> --library)
  set_tests_properties(capi_copyable PROPERTIES LABELS quick)
endif()

# The Python package: as a wheel alone in a fresh environment; and with torch, where `scripts/setup python`
# was run.
if(TARGET weft_shared)
  set(python_libraries $<TARGET_FILE:weft_shared>)
  if(TARGET weft_sim_hip)
    list(APPEND python_libraries $<TARGET_FILE:weft_sim_hip>)
  endif()
  add_test(NAME wheel COMMAND bash ${PROJECT_SOURCE_DIR}/tests/python/wheel.sh ${python_libraries})
  set_tests_properties(wheel PROPERTIES LABELS slow SKIP_RETURN_CODE 77)
  add_test(NAME torch
    COMMAND bash ${PROJECT_SOURCE_DIR}/tests/python/torch.sh $<TARGET_FILE:weft_shared>)
  set_tests_properties(torch PROPERTIES LABELS torch SKIP_RETURN_CODE 77)
endif()

# What is installed and copied to other machines: the sanitized build is not.
if(NOT WEFT_SANITIZE)
  add_test(NAME consumer
    COMMAND bash ${PROJECT_SOURCE_DIR}/tests/consumer/test.sh ${CMAKE_BINARY_DIR} ${CMAKE_GENERATOR})
  set_tests_properties(consumer PROPERTIES LABELS slow)
  if(TARGET weft_command)
    add_test(NAME copyable
      COMMAND bash ${PROJECT_SOURCE_DIR}/tests/copyable.sh $<TARGET_FILE:weft_command>)
    set_tests_properties(copyable PROPERTIES LABELS quick)
  endif()
endif()

# The longest begin first, so that no core waits for one of them at the end. (Seconds of two cores.)
foreach(each corpus:170 cdna_slow:250 processors:160 sim:100 sim_slow:90 wheel:90 hopper:90 hopper_slow:70
    check_gfx942_seeds:70 cdna:70 consumer:60 ops:60
    check_gfx942:50 check_gfx950:50 hip_models:30 engine_codes:20)
  string(REPLACE : ";" each ${each})
  list(GET each 0 name)
  list(GET each 1 seconds)
  if(TEST ${name})
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endforeach()
