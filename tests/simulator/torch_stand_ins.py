"""What stands in the place of torch's names looks in every respect as they do."""

from __future__ import annotations

import inspect
import pickle
import sys
import types

import pytest
import torch
import torch._dynamo
import torch._dynamo.device_interface
import torch.utils.data

import gpumagic

# What is asked for its class warns that it is deprecated.
pytestmark = [  # of torch, when all of its names are walked
    pytest.mark.filterwarnings("ignore:.*reduce_op:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:FutureWarning"),
]

TEXTS = ("__name__", "__doc__")
PLACES = ("__module__", "__qualname__")


class Words(dict):
    """Everything that torch's modules and classes hold, by place and name."""

    def __init__(self):
        super().__init__()
        for name, module in sorted(sys.modules.items()):
            if type(module) is types.ModuleType and name.startswith("torch"):
                self._look(module)

    def _look(self, module):
        for name, value in tuple(vars(module).items()):
            self[module, name] = value
            if not isinstance(value, type):
                continue
            if any("_simulation" in vars(each) for each in value.__mro__):
                continue  # one that is put in, with attributes of its own
            if value.__module__ == module.__name__ or value is torch.Tensor:
                for each, inner in tuple(vars(value).items()):
                    self[value, each] = inner


@pytest.fixture(scope="module", params=["sim", "cuda"])
def stand_ins(request):
    """The originals and what is in their place, while the simulator is on."""
    with gpumagic.simulate("h100"):
        pass  # what stays for good is there
    before = Words()
    with gpumagic.simulate("2xh100", as_cuda=request.param == "cuda"):
        yield {
            place: (original, value)
            for place, value in Words().items()
            for original in [before.get(place, inherited(*place, before))]
            if original is not None and value is not original
        }


def inherited(place, name, before):
    """What a class would have had from those above it."""
    return next(
        (
            before.get((each, name), vars(each).get(name))
            for each in getattr(place, "__mro__", ())[1:]
            if name in vars(each) and (place, name) not in before
        ),
        None,
    )


def replaced(stand_ins, *kinds):
    """Those whose original is of one of these kinds."""
    return [
        (place, name, plain(original), plain(value))
        for (place, name), (original, value) in stand_ins.items()
        if isinstance(original, kinds) and not name.startswith("__")
    ]


def plain(value):
    """What a method of a class does, without what makes it one."""
    methods = (staticmethod, classmethod)
    return value.__func__ if isinstance(value, methods) else value


def test_there_are_many(stand_ins):
    """The walk finds what is put in, so that the other tests look at something."""
    assert (torch, "ones") in stand_ins
    assert (torch.accelerator, "synchronize") in stand_ins
    assert len(stand_ins) > 60


def test_each_has_the_name_and_the_text_of_its_original(stand_ins):
    """Name, text and, but for functions of C, module and place are the original's."""
    for place, name, original, value in replaced(stand_ins, object):
        in_c = not isinstance(original, (type, types.FunctionType))
        for each in TEXTS if in_c else (*TEXTS, *PLACES):
            expected = getattr(original, each, None)
            assert getattr(value, each, None) == expected, (place, name, each)


def test_each_is_of_the_kind_that_its_original_is(stand_ins):
    """A class stands for a class, a function for a function, an object for its like."""
    for place, name, original, value in replaced(stand_ins, object):
        if isinstance(original, (types.GetSetDescriptorType, property)):
            assert isinstance(value, property), (place, name)
        elif isinstance(original, type):
            assert isinstance(value, type), (place, name)
        elif inspect.isroutine(original):
            kinds = types.FunctionType, type(original)  # no function is made in C
            assert isinstance(value, kinds), (place, name)
        else:
            assert isinstance(value, type(original)), (place, name)


def test_each_is_wrapped_as_its_original_is(stand_ins):
    """`__wrapped__` is there where torch has it, and is torch's own."""
    for place, name, original, value in replaced(stand_ins, object):
        expected = getattr(original, "__wrapped__", None)
        assert getattr(value, "__wrapped__", None) is expected, (place, name)


def test_each_function_shows_the_signature_of_its_original(stand_ins):
    """What `inspect.signature` says of a function of Python stays as it is."""
    for place, name, original, value in replaced(stand_ins, types.FunctionType):
        expected = inspect.signature(original)
        assert inspect.signature(value) == expected, (place, name)


def test_each_takes_what_its_original_takes(stand_ins):
    """Every argument can be given in the place, and by the name, that torch has."""
    missing = {}
    for place, name, original, value in replaced(stand_ins, types.FunctionType, type):
        try:
            wanted = inspect.signature(original).parameters.values()
        except ValueError:
            continue  # written in C, which does not say
        own = inspect.signature(own_code(value)).parameters
        if refused(wanted, own):
            missing[place.__name__, name] = refused(wanted, own)
    assert not missing


def own_code(value):
    """The function that does the work, without the signature that it shows."""
    if isinstance(value, type):
        return value
    if hasattr(value, "cache_clear"):
        value = value.__wrapped__
    if value.__code__.co_freevars == ("function",):
        return value.__closure__[0].cell_contents
    return types.FunctionType(
        value.__code__, {}, "own", value.__defaults__, value.__closure__
    )


def refused(wanted, own):
    """Parameters that cannot be given in their place or by their name."""
    kinds = {each.kind for each in own.values()}
    any_place = inspect.Parameter.VAR_POSITIONAL in kinds
    any_name = inspect.Parameter.VAR_KEYWORD in kinds
    in_order = list(own)
    missing = []
    for index, each in enumerate(wanted):
        by_name = any_name or each.name in own
        by_place = any_place or in_order[index : index + 1] == [each.name]
        if each.kind is each.POSITIONAL_ONLY:
            by_name, by_place = True, any_place or len(own) > index
        if each.kind is each.KEYWORD_ONLY:
            by_place = True
        variadic = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if not variadic and not (by_name and by_place):
            missing.append(each.name)
    return missing


def test_each_can_be_pickled_where_its_original_can(stand_ins):
    """It is pickled by its name, under which it is found again."""
    for place, name, original, value in replaced(stand_ins, object):
        bound = getattr(place, name)
        if callable(bound) and found_by_name(place, name, original):
            found = pickle.loads(pickle.dumps(value))  # noqa: S301 -- our own
            assert found is bound, (place, name)


def found_by_name(place, name, original):
    """Whether torch's own was where its name says; all that is of C can be pickled."""
    if not isinstance(original, (type, types.FunctionType)):
        return True
    if isinstance(place, type):
        return original.__qualname__ == f"{place.__qualname__}.{name}"
    return (original.__module__, original.__name__) == (place.__name__, name)


def test_one_name_in_several_places_is_one_object(stand_ins):
    """What torch offers in two modules is the same in both."""
    by_original = {}
    for _, name, original, value in replaced(stand_ins, types.FunctionType, type):
        assert by_original.setdefault(original, value) is value, name


def test_no_module_of_torch_goes_on_with_an_original(stand_ins):
    """What torch has copied before, as its compiler does, is exchanged as well."""
    originals = {
        id(original): name
        for place, name, original, _ in replaced(stand_ins, types.FunctionType, type)
        if isinstance(place, types.ModuleType)
    }
    for (place, name), value in Words().items():
        if getattr(place, "__name__", "").startswith("torch._C"):
            continue  # how torch's C++ is reached
        assert id(plain(value)) not in originals, (place, name)


def test_the_classes_of_cuda_are_what_they_are_in_torch():
    """Streams and events are torch's general ones; blocks are objects of a class."""
    with gpumagic.simulate("h100", as_cuda=True):
        assert issubclass(torch.cuda.Stream, torch.Stream)
        assert issubclass(torch.cuda.Event, torch.Event)
        assert issubclass(torch.cuda.ExternalStream, torch.cuda.Stream)
        assert issubclass(torch.cuda.device_of, torch.cuda.device)
        stream, event = torch.Stream(device="cuda"), torch.cuda.Event(True)
        assert isinstance(stream, torch.cuda.Stream)
        assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
        assert isinstance(torch.cuda.stream(stream), torch.cuda.StreamContext)
        assert isinstance(event, torch.cuda.Event)
        assert event._timing
        with torch.cuda.stream(stream) as entered:
            assert entered is None
            assert torch.cuda.current_stream() is stream


def test_what_torch_made_itself_belongs_to_the_class_that_stands_in():
    """`isinstance` holds for objects made before, and for classes derived from it."""
    made_before = torch.Generator()
    with gpumagic.simulate("h100", as_cuda=True):

        class Derived(torch.Generator):
            """A user's own."""

        assert isinstance(torch.default_generator, torch.Generator)
        assert isinstance(made_before, torch.Generator)
        assert issubclass(type(made_before), torch.Generator)
        assert isinstance(Derived(), torch.Generator)
        assert not isinstance(torch.default_generator, Derived)


def test_nothing_is_left_when_it_is_off(fork):
    """Every name and every copy is torch's own again, also of what came meanwhile."""
    fork("""
import importlib, sys, types, torch, gpumagic
with gpumagic.simulate("h100"):
    pass
places = torch, torch._C, torch.cuda, torch.accelerator, torch.Tensor
before = [dict(vars(each)) for each in places]
for as_cuda in (True, False):
    with gpumagic.simulate("h100", as_cuda=as_cuda):
        if as_cuda:
            import torch._dynamo.device_interface, torch._dynamo.variables.torch
        else:
            importlib.reload(torch._dynamo.device_interface)
        copied = types.ModuleType("torch.copied")
        copied.is_available = torch.cuda.is_available
        copied.Stream, copied.ones = torch.Stream, torch.ones
        sys.modules["torch.copied"] = copied
    for place, words in zip(places, before):
        changed = [key for key, word in words.items() if vars(place)[key] is not word]
        # The one that torch's compiler replaces.
        changed = [key for key in changed if key != "manual_seed"]
        assert not changed, (place, changed)
    assert copied.is_available is torch.cuda.is_available
    assert (copied.Stream, copied.ones) == (torch.Stream, torch.ones)
    cuda = torch._dynamo.device_interface.CudaInterface
    assert cuda.Stream is torch.cuda.Stream, cuda.Stream
    assert cuda.current_stream is torch.cuda.current_stream
    folded = torch._dynamo.variables.torch.constant_fold_functions
    assert torch.cuda.is_available in folded
""")
