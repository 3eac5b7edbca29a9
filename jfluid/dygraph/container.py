"""Containers of layers and of parameters."""

from collections.abc import Iterable, Iterator
from typing import Any

from jfluid.dygraph.layers import Layer
from jfluid.ir.variable import Variable

__all__ = ["LayerList", "ParameterList", "Sequential"]


class Sequential(Layer):
    """Applies layers one after the other.

    Args:
        layers: layers, which are named "0", "1" ..., or pairs of a name and a layer.

    Layers are read, replaced and removed by `chain[name]`, where a number stands for its text.
    Raises TypeError for other arguments.
    """

    def __init__(self, *layers: Any):
        super().__init__()
        if layers and isinstance(layers[0], (tuple, list)):
            for pair in layers:
                if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                    raise TypeError(
                        f"Sequential: expected layers or pairs of a name and a layer, not both; found {pair!r:.60}"
                    )
                self.add_sublayer(str(pair[0]), pair[1])
        else:
            for number, layer in enumerate(layers):
                self.add_sublayer(str(number), layer)

    def __getitem__(self, name: str | int) -> Layer:
        layer: Layer = _item(self._sub_layers, name)
        return layer

    def __setitem__(self, name: str | int, layer: Layer) -> None:
        _put(self, str(name), layer)

    def __delitem__(self, name: str | int) -> None:
        _item(self._sub_layers, name)
        del self._sub_layers[str(name)]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter([layer for layer in self._sub_layers.values() if layer is not None])

    def forward(self, input: Any) -> Any:
        """Apply all layers in order, each to the result of the layer before it."""
        for layer in self:
            input = layer(input)
        return input


class ParameterList(Layer):
    """Holds parameters in a list, which `append`, `list[i]` and iteration work on.

    Raises TypeError for an item that is no parameter, KeyError for a number without one.
    """

    def __init__(self, parameters: Iterable[Variable] | None = None):
        super().__init__()
        for parameter in parameters or ():
            self.append(parameter)

    def __getitem__(self, number: int) -> Variable:
        parameter: Variable = _item(self._parameters, _counted(number, len(self)))
        return parameter

    def __setitem__(self, number: int, parameter: Variable) -> None:
        name = str(_counted(number, len(self)))
        if name in self._parameters:
            setattr(self, name, parameter)
        else:
            self.add_parameter(name, parameter)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Variable]:
        return iter([param for param in self._parameters.values() if param is not None])

    def append(self, parameter: Variable) -> "ParameterList":
        """Put a parameter at the end, and return the list."""
        if parameter is None:
            raise TypeError("ParameterList.append: expected a parameter, found None")
        self.add_parameter(str(len(self)), parameter)
        return self


class LayerList(Layer):
    """Holds layers in a list, which `append`, `insert`, `extend`, `list[i]`, slices and iteration work on.

    Raises TypeError for an item that is no layer, KeyError for a number without one.
    """

    def __init__(self, sublayers: Iterable[Layer] | None = None):
        super().__init__()
        self.extend(sublayers or ())

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return LayerList(list(self)[number])
        return _item(self._sub_layers, _counted(number, len(self)))

    def __setitem__(self, number: int, layer: Layer) -> None:
        _put(self, str(_counted(number, len(self))), layer)

    def __delitem__(self, number: int | slice) -> None:
        layers = list(self)
        if not isinstance(number, slice):
            _item(self._sub_layers, _counted(number, len(self)))
        del layers[number]
        self._renumber(layers)

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter([layer for layer in self._sub_layers.values() if layer is not None])

    def append(self, sublayer: Layer) -> "LayerList":
        """Put a layer at the end, and return the list."""
        self.add_sublayer(str(len(self)), sublayer)
        return self

    def insert(self, index: int, sublayer: Layer) -> None:
        """Put a layer before the one at `index`. Raises IndexError where there is none."""
        if not isinstance(index, int) or not 0 <= index < len(self):
            raise IndexError(f"LayerList.insert, index: expected 0 to {len(self) - 1}, found {index!r}")
        layers = list(self)
        layers.insert(index, sublayer)
        self._renumber(layers)

    def extend(self, sublayers: Iterable[Layer]) -> "LayerList":
        """Put layers at the end, and return the list."""
        for layer in sublayers:
            self.append(layer)
        return self

    def _renumber(self, layers: list[Layer]) -> None:
        for layer in layers:
            if not isinstance(layer, Layer):
                raise TypeError(f"LayerList: expected a Layer, found {type(layer).__name__}")
        self._sub_layers.clear()
        self.extend(layers)


def _counted(number: int, length: int) -> int:
    """Return a number of an item of a list, counted from the front."""
    return number + length if isinstance(number, int) and -length <= number < 0 else number


def _item(held: Any, name: str | int) -> Any:
    """Return the entry of a name. Raises KeyError without an entry."""
    if str(name) not in held:
        raise KeyError(f"{name!r}: expected one of {', '.join(held) or 'none: it is empty'}")
    return held[str(name)]


def _put(holder: Layer, name: str, layer: Layer) -> None:
    """Replace the layer of a name, or append the layer."""
    if not isinstance(layer, Layer):
        raise TypeError(f"{holder.full_name()}[{name}]: expected a Layer, found {type(layer).__name__}")
    if name in holder._sub_layers:
        holder._sub_layers[name] = layer
    else:
        holder.add_sublayer(name, layer)
