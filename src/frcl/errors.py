"""The errors a user can meet. Each says what was given, what was expected and what to do."""


class FrclError(Exception):
    """Base of every error that this package raises on purpose."""


class OptionError(FrclError, ValueError):
    """An option is unknown or out of its range."""


class DataError(FrclError, ValueError):
    """Inputs or targets are unusable: not finite, of the wrong shape or type, too few."""


class LabelError(DataError):
    """A label does not belong to the task, or the labels do not make a classification task."""


class NetworkError(FrclError, ValueError):
    """The feature network breaks a promise: batch norm that is not frozen, dropout, wrong or non-finite features."""


class TaskError(FrclError, LookupError):
    """A task is asked for that does not exist, or in an order that makes no sense."""


class CheckpointError(FrclError, ValueError):
    """A file is not a checkpoint of this package, is damaged, or does not fit the network."""


class BusyError(CheckpointError):
    """Another process is at work in the same place."""


class BudgetError(FrclError, ValueError):
    """The memory that is allowed does not hold one point of each task."""


class NumericalError(FrclError, ArithmeticError):
    """The objective stopped being finite."""
